// Threads for what takes time: each request that is being answered has one.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace calla::server {

/// Threads are made as they are needed, up to the bound, and wait for more work afterwards.
class Workers {
 public:
  explicit Workers(int most) : most_(most) {}
  /// Waits for all tasks.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  Workers(Workers&&) = delete;
  Workers& operator=(Workers&&) = delete;

  /// Runs a task, which must not throw, as soon as a thread is free. Tasks beyond the bound wait their turn.
  void run(std::function<void()> task);

 private:
  void serve();

  const int most_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> tasks_;
  int idle_ = 0;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace calla::server
