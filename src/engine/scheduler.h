// The engine's thread: which slot does what next.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/stream.h"

namespace calla {

class Engine::Scheduler {
 public:
  Scheduler(std::unique_ptr<Backend> backend, EngineOptions options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  std::shared_ptr<EventStream> enqueue(GenerationRequest request);
  /// Makes the thread look around: a request was cancelled.
  void wake();
  const Backend& backend() const { return *backend_; }
  EngineStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// A request in a slot, or waiting for one.
  struct Job {
    GenerationRequest request;
    std::shared_ptr<EventStream> stream;
    int slot = -1;
    int limit = 0;          // tokens it may generate
    std::size_t read = 0;   // prompt tokens given to the backend
    int submitted = 0;      // tokens asked for or appended
    int in_flight = 0;      // steps submitted and not collected
    bool thinking = false;  // a budget is set and its end token has not come
    std::optional<Token> end_token;
    Clock::time_point queued_at;
    Clock::time_point started_at;
    Clock::time_point prefilled_at;
  };

  void run();
  bool admit();  // waits for work and takes requests into free slots; false when the engine is closing
  void begin_admitted();
  void drop_cancelled();
  void prefill_one_chunk();
  void close_thinking();
  bool submit_step();
  void collect_step();
  void release_finished();
  void finish(Job& job, GenerationEnd end, const std::string& error = {});
  void fail_all(const std::string& error);
  bool may_step(const Job& job) const;

  const std::unique_ptr<Backend> backend_;
  const EngineOptions options_;
  std::vector<std::unique_ptr<Job>> running_;  // by admission
  std::vector<int> free_slots_;
  std::size_t next_prefill_ = 0;        // whose chunk is next, so that long prompts take turns
  std::deque<std::vector<int>> steps_;  // slots of the steps submitted and not collected, oldest first

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> waiting_;
  int open_ = 0;  // requests that have not ended
  EngineStats stats_;
  bool woken_ = false;
  bool closing_ = false;

  std::thread thread_;  // last: it starts when everything above exists
};

}  // namespace calla
