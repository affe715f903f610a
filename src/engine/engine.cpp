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

Engine::Engine(std::unique_ptr<Backend> backend)
    : scheduler_(std::make_unique<Scheduler>(std::move(backend))) {}
Engine::~Engine() = default;

std::unique_ptr<Generation> Engine::start(GenerationRequest request) {
  if (request.prompt.empty()) throw RequestError("prompt", "is empty");
  if (request.max_tokens && *request.max_tokens < 1) throw RequestError("max_tokens", "must be at least 1");
  const auto prompt = static_cast<long long>(request.prompt.size());
  if (prompt >= context()) {
    throw RequestError(
        "prompt",
        fmt::format("has {} tokens, and the context has room for {} with the answer", prompt, context()),
        "shorten the conversation or start with a larger --context", "context_length_exceeded");
  }
  return std::make_unique<StreamedGeneration>(scheduler_->enqueue(std::move(request)),
                                              [this] { scheduler_->wake(); });
}

int Engine::context() const { return memory().context; }
const MemoryPlan& Engine::memory() const { return scheduler_->backend().memory(); }
std::string_view Engine::device() const { return scheduler_->backend().device(); }

}  // namespace calla
