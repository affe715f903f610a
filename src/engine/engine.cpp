#include "engine/engine.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "engine/scheduler.h"

namespace calla {
namespace {

/// The reader's end of a stream.
class StreamedGeneration final : public Generation {
 public:
  StreamedGeneration(std::shared_ptr<EventStream> stream, std::function<void()> wake)
      : stream_(std::move(stream)), wake_(std::move(wake)) {}
  ~StreamedGeneration() override { cancel(); }
  StreamedGeneration(const StreamedGeneration&) = delete;
  StreamedGeneration& operator=(const StreamedGeneration&) = delete;
  StreamedGeneration(StreamedGeneration&&) = delete;
  StreamedGeneration& operator=(StreamedGeneration&&) = delete;

  GenerationEvent next() override { return noted(stream_->pop()); }
  std::optional<GenerationEvent> next(Seconds patience) override {
    std::optional<GenerationEvent> event = stream_->pop(patience);
    if (event) noted(*event);
    return event;
  }
  void cancel() override {
    // After its end the engine may be gone: nothing is left to wake.
    if (finished_) return;
    stream_->cancel();
    wake_();
  }

 private:
  GenerationEvent noted(GenerationEvent event) {
    if (std::holds_alternative<GenerationFinished>(event)) finished_ = true;
    return event;
  }

  std::shared_ptr<EventStream> stream_;
  std::function<void()> wake_;
  bool finished_ = false;
};

}  // namespace

std::string_view name(CacheMiss miss) {
  constexpr std::array<std::string_view, cache_miss_count> names{"off", "too_short", "empty", "differs",
                                                                 "evicted"};
  return names[static_cast<std::size_t>(miss)];
}

QueueFull::QueueFull(int waiting, Seconds retry_after)
    : Error("the queue", fmt::format("is full: {} requests wait", waiting),
            fmt::format("try again in {:.0f} s", retry_after.count())),
      waiting_(waiting),
      retry_after_(retry_after) {}

Engine::Engine(std::unique_ptr<Backend> backend, EngineOptions options)
    : scheduler_(std::make_unique<Scheduler>(std::move(backend), std::move(options))) {}
Engine::~Engine() = default;

std::unique_ptr<Generation> Engine::start(GenerationRequest request) {
  if (request.prompt.empty()) throw RequestError("prompt", "is empty");
  if (request.max_tokens && *request.max_tokens < 1) throw RequestError("max_tokens", "must be at least 1");
  const auto prompt = static_cast<long long>(request.prompt.size());
  if (prompt >= context()) {
    throw RequestError(
        "prompt",
        fmt::format("has {} tokens, and the maximum context length is {} with the answer", prompt, context()),
        "shorten the conversation or start with a larger --context", "context_length_exceeded");
  }
  return std::make_unique<StreamedGeneration>(scheduler_->enqueue(std::move(request)),
                                              [this] { scheduler_->wake(); });
}

int Engine::context() const { return memory().context; }
const MemoryPlan& Engine::memory() const { return scheduler_->backend().memory(); }
std::string_view Engine::device() const { return scheduler_->backend().device(); }
EngineStats Engine::stats() const { return scheduler_->stats(); }
std::optional<std::string> Engine::lost() const { return scheduler_->lost(); }

}  // namespace calla
