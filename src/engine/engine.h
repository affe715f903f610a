// Tokens in, tokens out: requests, slots, their schedule, and the prefix cache. One thread drives the
// backend; any thread may start, read and cancel generations.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
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

/// How what comes after a marker begins, whatever the model would like to write there.
struct AnswerOpening {
  Token after = 0;             // </think>
  std::vector<Token> closing;  // what is appended where the model ends its turn without it, `after` included
  std::vector<Token> tokens;   // what is appended behind it
};

struct GenerationRequest {
  std::vector<Token> prompt;
  SamplingParams sampling;
  std::optional<int> max_tokens;  // at most what the context leaves; nothing: all of it
  std::optional<ThinkingBudget> budget;
  std::optional<AnswerOpening> opening;

  // For the prefix cache. None of it changes the answer.
  std::vector<int> boundaries;  // positions in the prompt that later prompts may share up to: where a message
                                // begins; ascending
  bool reply_continues = false;  // the next prompt is likely to hold the reply as it was generated
  bool side_request = false;     // a title, tags: nothing of it is kept, so that it drives out nothing
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
  int cached_tokens = 0;                // of the prompt, whose state was there already
  std::string cache_note = {};  // why not more of them: "first difference at token 812 of a cached prompt of
                                // 4096"; empty where the cache had all it could have
  Seconds queued{};             // from start() to the first work
  Seconds prefill{};            // to the end of the prompt
  Seconds decode{};             // from there to the last token
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

/// Why nothing of a prompt was found in the cache.
enum class CacheMiss {
  off,        // there is no cache
  too_short,  // the prompt is too short to be cut
  empty,      // nothing begins like it
  differs,    // something begins like it, and differs before the first position that was kept
  evicted,    // a prefix was there and made room for others
};
constexpr std::size_t cache_miss_count = 5;
std::string_view name(CacheMiss miss);  // "too_short"

/// Since the engine began; read at one moment.
struct EngineStats {
  std::array<std::uint64_t, 4> finished{};  // requests by GenerationEnd
  std::uint64_t refused = 0;                // by QueueFull
  int waiting = 0;                          // for a slot
  int slots = 0;
  int busy = 0;  // slots that serve a request
  std::uint64_t prompt_tokens = 0;
  std::uint64_t cached_tokens = 0;  // of those
  std::uint64_t generated_tokens = 0;
  std::uint64_t steps = 0;   // decode steps, of all slots together
  std::uint64_t pieces = 0;  // of prompts
  Seconds prefill{};         // that the backend spent on prompts
  Seconds decode{};          // and on steps
  std::uint64_t cache_bytes = 0;
  std::uint64_t cache_limit = 0;
  std::uint64_t cache_entries = 0;
  std::uint64_t cache_evictions = 0;
  std::uint64_t cache_hits = 0;                                // requests that found a part of their prompt
  std::array<std::uint64_t, cache_miss_count> cache_misses{};  // requests that did not, by CacheMiss
  std::uint64_t disk_bytes = 0;
  std::uint64_t disk_limit = 0;
  std::uint64_t disk_entries = 0;
};

/// All slots are taken and as many requests wait as may. An API answers 429.
class QueueFull : public Error {
 public:
  QueueFull(int waiting, Seconds retry_after);
  int waiting() const { return waiting_; }
  /// When a place is likely to be free, from how long requests took lately; between 1 second and 10 minutes.
  Seconds retry_after() const { return retry_after_; }

 private:
  int waiting_;
  Seconds retry_after_;
};

struct EngineOptions {
  int queue_limit = 64;                  // requests that may wait for a slot
  std::uint64_t cache_memory = 0;        // bytes of snapshots kept in memory; 0: no prefix cache
  std::filesystem::path cache_dir = {};  // where snapshots outlive the process; empty: nowhere
  std::uint64_t cache_disk = std::uint64_t{16} << 30U;  // bytes of files in cache_dir
  std::string model_id = {};  // the checkpoint and the version: a file written under another one is not used
  std::function<void(const std::string& line)> log = {};  // what happens to files of the cache, for people;
                                                          // called on any thread
};

/// Must outlive its generations.
class Engine {
 public:
  /// Throws Error when cache_dir cannot be made or read.
  explicit Engine(std::unique_ptr<Backend> backend, EngineOptions options = {});
  /// Cancels everything and waits for the backend to come to rest.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  Engine(Engine&&) = delete;
  Engine& operator=(Engine&&) = delete;

  /// Queues a request. Throws RequestError for an empty prompt, for one that leaves no room in the context
  /// (code context_length_exceeded, with both numbers), and for a max_tokens below 1; QueueFull; DeviceLost.
  std::unique_ptr<Generation> start(GenerationRequest request);

  int context() const;
  const MemoryPlan& memory() const;
  std::string_view device() const;
  EngineStats stats() const;
  /// Why no request can be served any more: the device is lost. Nothing while it is not.
  std::optional<std::string> lost() const;

 private:
  class Scheduler;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace calla
