// What passes between the engine's thread and the reader of one generation.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "engine/engine.h"

namespace calla {

/// A queue of events with one writer and one reader, and the reader's wish to stop.
class EventStream {
 public:
  void push(GenerationEvent event);
  GenerationEvent pop();
  std::optional<GenerationEvent> pop(Seconds patience);

  void cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

 private:
  GenerationEvent take();

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<GenerationEvent> events_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace calla
