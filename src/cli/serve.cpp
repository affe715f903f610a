// calla serve: the API and the web page, until a signal.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/open.h"
#include "cli/terminal.h"
#include "server/server.h"

namespace calla::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds look_around{20};  // for a signal
constexpr milliseconds end_patience{650};

/// The program is told to end while the model loads.
class Stopped : public Error {
 public:
  Stopped() : Error("", "stopped while loading") {}
};

std::vector<std::string> api_keys(const ServeFlags& flags) {
  if (!flags.api_key.empty()) return {flags.api_key};
  std::vector<std::string> keys;
  if (flags.api_key_file.empty()) return keys;
  std::string key;
  for (const char c : read_text_file(flags.api_key_file) + "\n") {
    if (c != '\n' && c != '\r') {
      key += c;
    } else if (!key.empty()) {
      keys.push_back(std::exchange(key, {}));
    }
  }
  if (keys.empty()) throw Error(flags.api_key_file, "holds no key", "write one a line");
  return keys;
}

std::unique_ptr<spdlog::logger> make_logger() {
  auto logger =
      std::make_unique<spdlog::logger>("calla", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v");
  return logger;
}

/// What tells this checkpoint from another, or from itself after a change.
std::string checkpoint_id(const ModelFlags& flags, const ModelWeights& model) {
  std::string id = fmt::format("{}, {} bytes, {}, calla {}", model_title(model), model.weights.bytes,
                               device_name(flags), CALLA_VERSION);
  if (model.store == nullptr) return id;
  for (const auto& entry : std::filesystem::directory_iterator(model_directory(flags))) {
    if (entry.path().extension() != ".safetensors") continue;
    id += fmt::format(", {} of {} at {}", entry.path().filename().string(), entry.file_size(),
                      entry.last_write_time().time_since_epoch().count());
  }
  return id;
}

EngineOptions engine_options(const ServeFlags& flags, const ModelWeights& model,
                             const std::function<void(const std::string&)>& log) {
  EngineOptions options;
  options.queue_limit = flags.queue;
  options.cache_dir = flags.cache_dir;
  options.cache_disk = flags.cache_disk;
  options.model_id = checkpoint_id(flags.model, model);
  options.log = log;
  return options;
}

/// The model's name without spaces, as APIs have it.
std::string model_id(const Shape& shape) {
  std::string id(name(shape));
  std::replace(id.begin(), id.end(), ' ', '-');
  return id;
}

std::string plan_line(const Model& model, const SnapshotMemory& snapshots) {
  const MemoryPlan& plan = model.engine.memory();
  const std::string on_host =
      snapshots.host == 0 ? "" : fmt::format(" and {} in the machine's memory", format_bytes(snapshots.host));
  return fmt::format(
      "{} on {}: {} slot{} of {} tokens; weights {}, KV cache {}, state {}, workspace {}, prefix cache up to "
      "{}{}",
      name(model.config.shape), model.engine.device(), plan.slots, plan.slots == 1 ? "" : "s", plan.context,
      format_bytes(plan.weights), format_bytes(plan.kv_cache), format_bytes(plan.states),
      format_bytes(plan.workspace), format_bytes(snapshots.device), on_host);
}

std::string curl_line(const server::Server& server, bool needs_key) {
  return fmt::format(
      "curl {}/v1/chat/completions -H 'Content-Type: application/json' {}"
      "-d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"What is the capital of Thailand?\"}}]}}'",
      server.url(), needs_key ? "-H 'Authorization: Bearer KEY' " : "");
}

/// Waits for the model, or for a signal: then there is none.
std::unique_ptr<Model> wait_for(std::future<std::unique_ptr<Model>>& loading) {
  while (loading.wait_for(look_around) != std::future_status::ready) {
    if (!StopSignals::arrived()) continue;
    // Loading ends at its next report of progress. If that does not come there is nothing to be lost.
    if (loading.wait_for(end_patience) != std::future_status::ready) std::_Exit(0);
  }
  try {
    return loading.get();
  } catch (const Stopped&) {
    return nullptr;
  }
}

/// The device may be in the middle of a piece of work that cannot be interrupted; files are whole at any
/// time, so that nothing is lost by not waiting for it.
void release(std::unique_ptr<Model> model) {
  auto released = std::async(std::launch::async, [model = std::move(model)]() mutable { model.reset(); });
  if (released.wait_for(end_patience) != std::future_status::ready) std::_Exit(0);
}

}  // namespace

void serve(const ServeFlags& flags) {
  const StopSignals signals;
  const std::unique_ptr<spdlog::logger> logger = make_logger();
  server::ServerOptions options;
  options.host = flags.host;
  options.port = flags.port;
  options.api_keys = api_keys(flags);
  options.cors_origins = flags.cors;
  options.log_text = flags.log_text;
  const bool needs_key = !options.api_keys.empty();

  std::unique_ptr<Model> model;
  server::Server server(std::move(options), [&](server::LogLevel level, std::string_view line) {
    logger->log(level == server::LogLevel::info ? spdlog::level::info : spdlog::level::warn, line);
  });
  server.start();
  logger->info("listening on {}", server.url());
  if (server.is_open_to_all()) {
    logger->warn("{} can be reached from other machines, by everyone who asks; set --api-key", server.url());
  }

  SnapshotMemory snapshots;
  const OpenHooks hooks{.cache_memory = flags.cache_memory,
                        .engine_options =
                            [&](const ModelWeights& found, const MemoryPlan& plan) {
                              snapshots = plan.snapshots;
                              return engine_options(flags, found,
                                                    [&](const std::string& line) { logger->info(line); });
                            },
                        .progress =
                            [&](std::uint64_t done, std::uint64_t total) {
                              if (StopSignals::arrived()) throw Stopped();
                              server.show_loading(done, total);
                            }};
  auto loading = std::async(std::launch::async, [&] { return open_model(flags.model, hooks); });
  model = wait_for(loading);
  if (model == nullptr) return;

  const auto now = std::chrono::system_clock::now().time_since_epoch();
  server.open(
      {.chat = &model->chat,
       .id = model_id(model->config.shape),
       .created = std::chrono::duration_cast<std::chrono::seconds>(now).count(),
       .defaults = {.enable_thinking = !flags.no_thinking, .preserve_thinking = flags.preserve_thinking}});
  logger->info(plan_line(*model, snapshots));
  logger->info("web page: {}/   API: {}/v1", server.url(), server.url());
  logger->info("try: {}", curl_line(server, needs_key));

  std::optional<std::string> lost;
  while (!StopSignals::arrived() && !lost) {
    ::usleep(std::chrono::microseconds(look_around).count());
    lost = model->engine.lost();
  }
  logger->info("ending");
  server.stop();
  release(std::move(model));
  // Who watches over the program starts it again.
  if (lost) throw Error("", *lost);
}

}  // namespace calla::cli
