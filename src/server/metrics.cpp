#include "server/metrics.h"

#include <fmt/format.h>

namespace calla::server {
namespace {

class Exposition {
 public:
  void head(std::string_view name, std::string_view type, std::string_view help) {
    text_ += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
  }
  template <class Value>
  void sample(std::string_view name, std::string_view labels, Value value) {
    text_ += fmt::format("{}{} {}\n", name, labels, value);
  }
  template <class Value>
  void counter(std::string_view name, std::string_view help, Value value) {
    head(name, "counter", help);
    sample(name, "", value);
  }
  template <class Value>
  void gauge(std::string_view name, std::string_view help, Value value) {
    head(name, "gauge", help);
    sample(name, "", value);
  }
  void add(const std::string& text) { text_ += text; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string label(std::string_view name, std::string_view value) {
  return fmt::format("{{{}=\"{}\"}}", name, value);
}

void write_engine(Exposition& out, const Engine& engine) {
  const EngineStats stats = engine.stats();
  out.head("calla_generations_total", "counter", "Generations that have ended, by how.");
  constexpr std::array<std::string_view, 4> ends{"stop", "length", "cancelled", "failed"};
  for (std::size_t i = 0; i < ends.size(); ++i) {
    out.sample("calla_generations_total", label("end", ends[i]), stats.finished[i]);
  }
  out.counter("calla_queue_refusals_total", "Requests refused because the queue was full.", stats.refused);
  out.gauge("calla_queue_length", "Requests that wait for a slot.", stats.waiting);
  out.gauge("calla_slots", "Sequences that can be decoded together.", stats.slots);
  out.gauge("calla_slots_busy", "Slots that serve a request.", stats.busy);
  out.counter("calla_prompt_tokens_total", "Tokens of prompts.", stats.prompt_tokens);
  out.counter("calla_cached_tokens_total", "Tokens of prompts whose state was in the cache.",
              stats.cached_tokens);
  out.counter("calla_generated_tokens_total", "Tokens of replies.", stats.generated_tokens);
  out.counter("calla_decode_steps_total", "Decode steps of all slots together.", stats.steps);
  out.counter("calla_prefill_pieces_total", "Pieces of prompts that were read.", stats.pieces);
  out.counter("calla_prefill_seconds_total", "Time spent on prompts.", stats.prefill.count());
  out.counter("calla_decode_seconds_total", "Time spent on decode steps.", stats.decode.count());
  out.counter("calla_cache_hits_total", "Requests that found a part of their prompt in the cache.",
              stats.cache_hits);
  out.head("calla_cache_misses_total", "counter", "Requests that found nothing of their prompt, by why.");
  for (std::size_t i = 0; i < cache_miss_count; ++i) {
    out.sample("calla_cache_misses_total", label("reason", name(static_cast<CacheMiss>(i))),
               stats.cache_misses[i]);
  }
  out.counter("calla_cache_evictions_total", "Snapshots that made room for others.", stats.cache_evictions);
  out.gauge("calla_cache_entries", "Snapshots in memory.", stats.cache_entries);
  out.gauge("calla_cache_bytes", "Bytes of them.", stats.cache_bytes);
  out.gauge("calla_cache_limit_bytes", "Bytes that they may take.", stats.cache_limit);
  out.gauge("calla_cache_disk_entries", "Snapshots on disk.", stats.disk_entries);
  out.gauge("calla_cache_disk_bytes", "Bytes of them.", stats.disk_bytes);
  out.gauge("calla_cache_disk_limit_bytes", "Bytes that they may take.", stats.disk_limit);

  const MemoryPlan& memory = engine.memory();
  out.gauge("calla_context_tokens", "Tokens that a conversation may have.", memory.context);
  out.head("calla_memory_bytes", "gauge", "Memory by purpose, as planned.");
  out.sample("calla_memory_bytes", label("purpose", "weights"), memory.weights);
  out.sample("calla_memory_bytes", label("purpose", "kv_cache"), memory.kv_cache);
  out.sample("calla_memory_bytes", label("purpose", "states"), memory.states);
  out.sample("calla_memory_bytes", label("purpose", "workspace"), memory.workspace);
}

}  // namespace

void Histogram::observe(double value, std::uint64_t times) {
  std::size_t i = 0;
  while (i < bounds.size() && value > bounds[i]) ++i;
  counts_[i] += times;
  sum_ += value * static_cast<double>(times);
}

std::string Histogram::text(std::string_view name, std::string_view help) const {
  std::string text = fmt::format("# HELP {0} {1}\n# TYPE {0} histogram\n", name, help);
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    count += counts_[i];
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bounds[i], count);
  }
  count += counts_.back();
  text += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count, sum_);
  return text;
}

void Metrics::count(const RequestRecord& record) {
  const std::lock_guard lock(mutex_);
  ++requests_[{record.route, record.status}];
  request_.observe(Seconds(RequestRecord::Clock::now() - record.began).count());
  if (record.first_token) first_token_.observe(record.first_token->count());
  if (!record.reply) return;
  const ReplyRecord& reply = *record.reply;
  reasoning_tokens_ += static_cast<std::uint64_t>(reply.usage.reasoning_tokens);
  queued_.observe(reply.queued.count());
  prefill_.observe(reply.prefill.count());
  const int each = reply.choices > 0 ? reply.usage.completion_tokens / reply.choices : 0;
  if (each > 0)
    token_.observe(reply.decode.count() / each, static_cast<std::uint64_t>(reply.usage.completion_tokens));
}

std::string Metrics::text(const Engine* engine, int connections) const {
  Exposition out;
  {
    const std::lock_guard lock(mutex_);
    out.head("calla_requests_total", "counter",
             "HTTP requests, by path and status; 499: the client went away.");
    for (const auto& [key, count] : requests_) {
      out.sample("calla_requests_total", fmt::format("{{path=\"{}\",status=\"{}\"}}", key.first, key.second),
                 count);
    }
    out.counter("calla_reasoning_tokens_total", "Tokens of replies that were reasoning.", reasoning_tokens_);
    out.add(first_token_.text("calla_time_to_first_token_seconds",
                              "From a request to the first text of its reply."));
    out.add(token_.text("calla_token_latency_seconds",
                        "From token to token: of each request the mean, once a token."));
    out.add(queued_.text("calla_queue_seconds", "From a request to its slot."));
    out.add(prefill_.text("calla_prefill_request_seconds", "From the slot to the end of the prompt."));
    out.add(request_.text("calla_request_seconds", "From a request to the end of its answer."));
  }
  out.gauge("calla_connections", "Connections that are open.", connections);
  if (engine != nullptr) write_engine(out, *engine);
  return out.take();
}

}  // namespace calla::server
