#include "cli/open.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "checkpoint/loader.h"
#include "checkpoint/synthetic.h"
#include "cli/backends.h"
#include "cli/synthetic_flag.h"
#include "cli/terminal.h"

namespace calla::cli {
namespace {

/// The tokenizer must be the one the checkpoint was trained with: its ids fit the embedding, and the ids at
/// which the model ends its turn are control tokens.
void check_tokenizer(const Tokenizer& tokenizer, const ModelConfig& config,
                     const std::filesystem::path& directory) {
  const std::string file = (directory / "tokenizer.json").string();
  constexpr std::string_view advice = "take the tokenizer.json that belongs to the checkpoint";
  if (tokenizer.size() > config.shape.vocabulary) {
    throw Error(file,
                fmt::format("has {} tokens, and the model {}", tokenizer.size(), config.shape.vocabulary),
                advice);
  }
  for (const Token token : config.end_tokens) {
    if (!tokenizer.is_control(token)) {
      throw Error(
          file,
          fmt::format("has {} tokens, and {}, which ends the model's turn, is not a control token of it",
                      tokenizer.size(), token),
          advice);
    }
  }
}

SamplingChoice recommended(const GenerationConfig& config) {
  SamplingChoice choice;
  // do_sample false is the makers' way to say: always the most probable token.
  choice.temperature = config.do_sample.value_or(true) ? config.temperature : 0.0F;
  choice.top_k = config.top_k;
  choice.top_p = config.top_p;
  choice.min_p = config.min_p;
  choice.repetition_penalty = config.repetition_penalty;
  choice.presence_penalty = config.presence_penalty;
  choice.frequency_penalty = config.frequency_penalty;
  return choice;
}

std::vector<Token> end_tokens(const ModelConfig& config, const GenerationConfig& generation) {
  std::vector<Token> tokens = config.end_tokens;
  tokens.insert(tokens.end(), generation.end_tokens.begin(), generation.end_tokens.end());
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

}  // namespace

std::filesystem::path demo_directory() { return CALLA_DEMO_MODEL; }

std::filesystem::path model_directory(const ModelFlags& flags) {
  std::filesystem::path directory = flags.model;
  if (!flags.synthetic.empty()) {
    directory = demo_directory();
  } else if (directory.empty()) {
    const char* from_environment = std::getenv("CALLA_MODEL");  // NOLINT(concurrency-mt-unsafe)
    directory =
        from_environment != nullptr && *from_environment != '\0' ? from_environment : demo_directory();
  }
  check_model_directory(directory);
  return directory;
}

ModelWeights find_weights(const ModelFlags& flags, const std::filesystem::path& directory) {
  const ModelConfig config = read_config(directory);
  if (!flags.synthetic.empty()) {
    const Shape shape = parse_synthetic(flags.synthetic);
    return {.config = synthetic_config(shape, config), .weights = synthetic_weights(shape), .store = nullptr};
  }
  auto store = TensorStore::open(directory);
  Weights weights = bind_weights(store, config.shape);
  return {.config = config, .weights = std::move(weights), .store = std::move(store)};
}

std::string model_title(const ModelWeights& model) {
  const Shape& shape = model.config.shape;
  return fmt::format("{}, {} layer{}{}", name(shape), shape.layers, shape.layers == 1 ? "" : "s",
                     model.store == nullptr ? ", synthetic" : "");
}

MemoryPlan plan_memory(const ModelFlags& flags, const ModelConfig& config, std::uint64_t weight_bytes,
                       std::optional<std::uint64_t> available) {
  const auto plan = [&](int context) {
    return plan_backend(flags, config.shape, weight_bytes, flags.slots, context);
  };
  if (flags.context) {
    if (*flags.context > config.context) {
      throw Error("--context",
                  fmt::format("is {}, and the model knows {} positions", *flags.context, config.context));
    }
    return plan(*flags.context);
  }
  // Halve until it fits; what does not fit even so is refused by require_fit with its numbers.
  constexpr int least = 4096;
  int context = config.context;
  while (available && plan(context).total() > *available && context / 2 >= least) context /= 2;
  return plan(context);
}

std::unique_ptr<Backend> load_backend(const ModelFlags& flags, const ModelWeights& model,
                                      const MemoryPlan& plan, const LoadProgress& progress) {
  const bool on_gpu = thread_count(flags) == 0;
  const std::string where = on_gpu ? "memory of " + device_name(flags) : "memory";
  if (const std::optional<std::uint64_t> available = available_memory(flags))
    require_fit(plan, *available, where);
  if (const std::string reason = fallback_reason(flags); !reason.empty())
    put(STDERR_FILENO, fmt::format("calla: {}; running on the CPU\n", reason));
  ProgressBar bar(fmt::format("Loading {}", name(model.config.shape)));
  return make_backend(flags, model, plan, [&](std::uint64_t done, std::uint64_t total) {
    bar.draw(done, total, fmt::format("{} of {}", format_bytes(done), format_bytes(total)));
    if (progress) progress(done, total);
  });
}

std::unique_ptr<Model> open_model(const ModelFlags& flags, const OpenHooks& hooks) {
  const std::filesystem::path directory = model_directory(flags);
  const GenerationConfig generation = read_generation_config(directory);
  ModelWeights found = find_weights(flags, directory);
  Tokenizer tokenizer = Tokenizer::load(directory);
  check_tokenizer(tokenizer, found.config, directory);
  const std::optional<std::uint64_t> available = available_memory(flags);
  MemoryPlan plan = plan_memory(flags, found.config, found.weights.bytes, available);
  const std::uint64_t left = std::max(available.value_or(0), plan.total()) - plan.total();
  plan.snapshots = plan_snapshots(hooks.cache_memory, left, available_host_memory(flags));
  EngineOptions options = hooks.engine_options ? hooks.engine_options(found, plan) : EngineOptions{};
  options.cache_memory = plan.snapshots.total();
  std::unique_ptr<Backend> backend = load_backend(flags, found, plan, hooks.progress);
  return std::make_unique<Model>(found.config, std::move(tokenizer), std::move(backend), std::move(options),
                                 recommended(generation), end_tokens(found.config, generation));
}

Model::Model(ModelConfig model_config, Tokenizer model_tokenizer, std::unique_ptr<Backend> backend,
             EngineOptions engine_options, const SamplingChoice& defaults, std::vector<Token> end_tokens)
    : config(std::move(model_config)),
      tokenizer(std::move(model_tokenizer)),
      engine(std::move(backend), std::move(engine_options)),
      chat(engine, tokenizer, defaults, std::move(end_tokens)) {}

}  // namespace calla::cli
