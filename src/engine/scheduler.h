// The engine's thread: which slot does what next.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/kept_states.h"
#include "engine/stream.h"

namespace calla {

/// Each turn of the thread reads at most one piece of one prompt and does one decode step of all slots that
/// answer, so that answers keep flowing while prompts are read; prompts take turns, a piece each. While
/// others answer, a piece is an eighth of what the backend likes: that is how long they may be held up.
///
/// When nothing else is to be done, replies that the next prompt is likely to hold are read as prompts, in
/// advance. The state that decoding leaves behind would differ from that in the last bits, and an answer must
/// not depend on what happened to be cached.
class Engine::Scheduler {
 public:
  Scheduler(std::unique_ptr<Backend> backend, EngineOptions options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  Scheduler(Scheduler&&) = delete;
  Scheduler& operator=(Scheduler&&) = delete;

  /// Throws QueueFull, and DeviceLost.
  std::shared_ptr<EventStream> enqueue(GenerationRequest request);
  /// Makes the thread look around: a request was cancelled.
  void wake();
  const Backend& backend() const { return *backend_; }
  EngineStats stats() const;
  std::optional<std::string> lost() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// A request in a slot, or waiting for one.
  struct Job {
    GenerationRequest request;
    std::shared_ptr<EventStream> stream;
    int slot = -1;
    int limit = 0;       // tokens it may generate
    bool begun = false;  // the cache has been asked, and reading may begin
    int read = 0;        // prompt tokens in the slot
    int cached = 0;      // of those, what the cache had
    CacheMiss miss = CacheMiss::off;
    std::string cache_note = {};
    std::optional<KeptStates::Loading> loading = {};  // files that come before reading
    std::vector<int> keep = {};                       // cuts whose state is kept, ascending
    int submitted = 0;                                // tokens asked for or appended
    int in_flight = 0;                                // steps submitted and not collected
    bool thinking = false;                            // a budget is set and its end token has not come
    bool opens = false;                               // an opening is set and not appended
    bool opening_due = false;                         // and its marker has come
    std::vector<Token> reply = {};
    std::optional<Token> end_token;
    std::optional<std::string> fault = {};  // what went wrong with it: it ends when its steps are here
    Clock::time_point queued_at;
    Clock::time_point started_at;
    Clock::time_point prefilled_at;

    int length() const { return static_cast<int>(request.prompt.size()); }
    bool reading() const { return read < length() && !fault; }
  };
  /// A prompt with its reply, to be read when there is time.
  struct Reading {
    std::vector<Token> tokens;
    int known = 0;  // of those, whose state was kept: less is not worth beginning with
    int slot = -1;
    int read = 0;
  };

  void run();
  bool admit();  // waits for work and takes requests into free slots; false when the engine is closing
  void begin_admitted();
  void drop_cancelled();
  void close_thinking();
  void open_answers();
  void append(Job& job, std::span<const Token> tokens);
  bool submit_step();
  void collect_step();
  void release_finished();
  void finish(Job& job, GenerationEnd end, const std::string& error = {});
  void fail_all(const std::string& error);
  void lose(const std::string& error);
  template <class Work>
  void alone(Job& job, Work work);
  template <class Call>
  void with_room(Call call);
  bool may_step(const Job& job) const;
  bool answering() const;  // some slot decodes

  // scheduler_prefill.cpp
  void prefill_one_piece();
  bool waits_for_another(const Job& job);
  void begin_reading(Job& job);
  void load_one_file(Job& job);
  void start_from(Job& job, const Snapshot* snapshot);  // null: from nothing
  void read_more(Job& job);
  void read_piece(Job& job);
  int piece_limit(bool alone) const;
  void run_piece(int slot, std::span<const Token> tokens, bool last);
  void remember_reply(Job& job);
  void read_ahead();
  void pause_reading_ahead();
  void count_cache();

  const std::unique_ptr<Backend> backend_;
  const EngineOptions options_;
  KeptStates kept_;
  std::vector<std::unique_ptr<Job>> running_;  // by admission
  std::vector<int> free_slots_;
  std::size_t next_prefill_ = 0;        // whose piece is next
  std::deque<std::vector<int>> steps_;  // slots of the steps submitted and not collected, oldest first
  std::deque<Reading> ahead_;           // oldest first; the last one is being read when it has a slot

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> waiting_;
  bool woken_ = false;
  bool closing_ = false;
  std::optional<std::string> lost_;
  int open_ = 0;              // requests that have not ended
  Seconds usual_service_{1};  // how long a request takes in its slot, lately
  EngineStats stats_;

  std::thread thread_;  // last: it starts when everything above exists
};

/// Does work for one request. What goes wrong with it is that one's end and no other's, unless the device is
/// lost.
template <class Work>
void Engine::Scheduler::alone(Job& job, Work work) {
  try {
    work();
  } catch (const DeviceLost&) {
    throw;
  } catch (const std::exception& fault) {
    job.fault = fault.what();
  }
}

/// Calls the backend for what a request needs. Where there is no memory for it, what is kept of prompts gives
/// way.
template <class Call>
void Engine::Scheduler::with_room(Call call) {
  for (;;) {
    try {
      return call();
    } catch (const OutOfMemory&) {
      if (!kept_.give_way()) throw;
    }
    count_cache();
  }
}

}  // namespace calla
