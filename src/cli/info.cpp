// calla info: what the checkpoint is, what the machine has, and whether they fit together.
#include <memory>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "checkpoint/loader.h"
#include "checkpoint/synthetic.h"
#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/info_plan.h"
#include "cli/open.h"
#include "cli/processor.h"
#include "cli/synthetic_flag.h"
#include "cli/terminal.h"

namespace calla::cli {
namespace {

void print_row(std::string_view name, const std::string& value) {
  put(STDOUT_FILENO, fmt::format("  {:<12} {}\n", name, value));
}

void print_head(std::string_view title) {
  const Style style(STDOUT_FILENO);
  put(STDOUT_FILENO, fmt::format("{}{}{}\n", style.bold, title, style.reset));
}

}  // namespace

void info(const InfoFlags& info_flags) {
  const ModelFlags& flags = info_flags.model;
  const std::filesystem::path directory = model_directory(flags);
  if (info_flags.plan) {
    if (flags.backend != BackendKind::metal)
      throw UsageError("--plan", "is there for --backend metal alone", "add --backend metal");
    ModelConfig config = read_config(directory);
    if (!flags.synthetic.empty()) config = synthetic_config(parse_synthetic(flags.synthetic), config);
    return print_decode_plan(config.shape, flags.context.value_or(config.context));
  }
  const ModelWeights model = find_weights(flags, directory);
  const ModelConfig& config = model.config;
  const Weights& weights = model.weights;
  const Tokenizer tokenizer = Tokenizer::load(directory);
  const Shape& shape = config.shape;

  const int all_layers = same_model(shape, demo) ? demo.layers : qwen36_35b.layers;
  const std::string cut =
      shape.layers < all_layers ? fmt::format("{} of {} layers: ", shape.layers, all_layers) : "";

  // All that may fail comes before the first line, so that an error stands alone.
  const std::string device = describe_device(flags, shape);
  const std::optional<std::uint64_t> available = available_memory(flags);
  const MemoryPlan plan = plan_memory(flags, config, weights.bytes, available);

  print_head(model.store != nullptr ? "Checkpoint" : "Synthetic weights");
  print_row("model", std::string(name(shape)));
  print_row(model.store != nullptr ? "directory" : "tokenizer", directory.string());
  print_row("weights", fmt::format("{}, affine 4-bit in groups of 64", format_bytes(weights.bytes)));
  print_row("layers", fmt::format("{}{} Gated DeltaNet, {} attention; {} experts, {} a token", cut,
                                  shape.delta_layers(), shape.attention_layers(), shape.experts,
                                  Shape::experts_per_token));
  print_row("drafting",
            weights.mtp ? "has a multi-token-prediction layer" : "no multi-token-prediction layer");
  print_row("vocabulary", fmt::format("{} tokens ({} rows)", tokenizer.size(), shape.vocabulary));
  print_row("context", fmt::format("up to {} tokens", config.context));

  print_head("Machine");
  print_row("processor",
            fmt::format("{}, {} threads", processor_name(), std::thread::hardware_concurrency()));
  print_row("memory", available ? format_bytes(*available) + " available" : "unknown");
  print_row("runs on", device);

  print_head("Memory plan");
  print_row("weights", format_bytes(plan.weights));
  print_row("KV cache", fmt::format("{} for {} slot{} of {} tokens", format_bytes(plan.kv_cache), plan.slots,
                                    plan.slots == 1 ? "" : "s", plan.context));
  print_row("state", format_bytes(plan.states));
  print_row("workspace", format_bytes(plan.workspace));
  const bool fits = !available || plan.total() <= *available;
  print_row("in all",
            fmt::format("{}: {}", format_bytes(plan.total()),
                        fits ? "fits" : "does not fit; close other programs or choose a smaller --context"));
}

}  // namespace calla::cli
