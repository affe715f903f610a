#include "engine/stream.h"

#include <utility>

namespace calla {

void EventStream::push(GenerationEvent event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  arrived_.notify_one();
}

GenerationEvent EventStream::take() {
  GenerationEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

GenerationEvent EventStream::pop() {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [&] { return !events_.empty(); });
  return take();
}

std::optional<GenerationEvent> EventStream::pop(Seconds patience) {
  std::unique_lock lock(mutex_);
  if (!arrived_.wait_for(lock, patience, [&] { return !events_.empty(); })) return std::nullopt;
  return take();
}

}  // namespace calla
