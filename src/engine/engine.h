// Tokens in, tokens out: requests, slots and their schedule. One thread drives the backend; any thread may
// start, read and cancel generations.
#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/token.h"
#include "model/backend.h"
#include "model/sampling.h"

namespace calla {

/// A bound on the tokens before a marker: if the model has not written `end` within `tokens` tokens, the
/// engine appends `closing` in its place and lets it go on from there.
struct ThinkingBudget {
  int tokens = 0;
  Token end = 0;                    // </think>
  std::vector<Token> closing = {};  // what is appended, `end` included
};

struct GenerationRequest {
  std::vector<Token> prompt;
  SamplingParams sampling;
  std::optional<int> max_tokens;  // at most what the context leaves; nothing: all of it
  std::optional<ThinkingBudget> budget;
};

/// The prompt is being read: `done` of `total` tokens.
struct PromptProgress {
  int done = 0;
  int total = 0;
};

struct GeneratedToken {
  Token token = 0;
  bool forced = false;  // appended by the engine, not drawn
  float logprob = 0;
  std::vector<TokenLogprob> top_logprobs = {};
};

enum class GenerationEnd {
  stop,       // the model drew an end token
  length,     // max_tokens or the context is used up
  cancelled,  // by cancel() or the engine's end
  failed,     // the backend threw; `error` says what
};

using Seconds = std::chrono::duration<double>;

struct GenerationFinished {
  GenerationEnd end = GenerationEnd::stop;
  std::string error = {};
  std::optional<Token> end_token = {};  // of GenerationEnd::stop
  Seconds queued{};                     // from start() to the first work
  Seconds prefill{};                    // to the end of the prompt
  Seconds decode{};                     // from there to the last token
};

using GenerationEvent = std::variant<PromptProgress, GeneratedToken, GenerationFinished>;

/// One running request. Its destructor cancels it.
class Generation {
 public:
  virtual ~Generation() = default;
  /// Waits for the next event; the last one is GenerationFinished, after which there is nothing more to ask
  /// for.
  virtual GenerationEvent next() = 0;
  /// The same, for at most `patience`; nothing when it passes.
  virtual std::optional<GenerationEvent> next(Seconds patience) = 0;
  /// Ends it within one decode step or prefill chunk. Events that are already there still come out.
  virtual void cancel() = 0;
};

/// Must outlive its generations.
class Engine {
 public:
  explicit Engine(std::unique_ptr<Backend> backend);
  /// Cancels everything and waits for the backend to come to rest.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  Engine(Engine&&) = delete;
  Engine& operator=(Engine&&) = delete;

  /// Queues a request. Throws RequestError for an empty prompt, for one that leaves no room in the context
  /// (code context_length_exceeded, with both numbers), and for a max_tokens below 1.
  std::unique_ptr<Generation> start(GenerationRequest request);

  int context() const;
  const MemoryPlan& memory() const;
  std::string_view device() const;

 private:
  class Scheduler;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace calla
