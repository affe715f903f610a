// Work of the background that lasts as long as there is use for it, and a while longer.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace calla::metal {

/// From touch() on, in a thread of its own: `begin` once, `beat` at once and then every `interval`, `end`
/// when nobody has called touch() for as long as `linger`, or when this is destroyed.
class KeepAlive {
 public:
  struct Actions {
    std::function<void()> begin;
    std::function<void()> beat;
    std::function<void()> end;
  };
  KeepAlive(Actions actions, std::chrono::milliseconds interval, std::chrono::milliseconds linger);
  ~KeepAlive();
  KeepAlive(const KeepAlive&) = delete;
  KeepAlive& operator=(const KeepAlive&) = delete;
  KeepAlive(KeepAlive&&) = delete;
  KeepAlive& operator=(KeepAlive&&) = delete;

  void touch();

 private:
  using Clock = std::chrono::steady_clock;

  void run();

  const Actions actions_;
  const std::chrono::milliseconds interval_;
  const std::chrono::milliseconds linger_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Clock::time_point until_ = Clock::time_point::min();
  bool at_work_ = false;
  bool stopped_ = false;
  std::thread thread_;  // the last member: it runs once the others are there
};

}  // namespace calla::metal
