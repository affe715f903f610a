// From flags to a model ready to run.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "chat/chat.h"
#include "checkpoint/config.h"
#include "checkpoint/loader.h"
#include "checkpoint/tensor_store.h"
#include "cli/commands.h"
#include "engine/engine.h"
#include "model/memory_plan.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace calla::cli {

/// Where the demonstration model lies.
std::filesystem::path demo_directory();

/// The directory of the tokenizer and of the makers' sampling parameters: that of the checkpoint, or for
/// synthetic weights that of the demonstration model. Throws Error when it does not exist.
std::filesystem::path model_directory(const ModelFlags& flags);

/// The weights that the flags name, not yet read from the disk.
struct ModelWeights {
  ModelConfig config;
  Weights weights;
  std::shared_ptr<const TensorStore> store;  // null for synthetic weights
};

/// What it is, for people: "Qwen3.6-35B-A3B, 40 layers, synthetic".
std::string model_title(const ModelWeights& model);

/// Checks the checkpoint of `directory` and binds its weights, or makes synthetic ones. Throws Error for
/// whatever is wrong with it.
ModelWeights find_weights(const ModelFlags& flags, const std::filesystem::path& directory);

/// The memory plan for the flags: the context asked for, or the longest that the model knows and `available`
/// bytes hold.
MemoryPlan plan_memory(const ModelFlags& flags, const ModelConfig& config, std::uint64_t weight_bytes,
                       std::optional<std::uint64_t> available);

/// Reads the weights and makes the backend that the flags ask for, with a progress bar on a terminal;
/// `progress` is told too, where there is one. Throws Error when the plan does not fit into memory, or the
/// disk fails.
std::unique_ptr<Backend> load_backend(const ModelFlags& flags, const ModelWeights& model,
                                      const MemoryPlan& plan, const LoadProgress& progress = {});

/// A loaded model: the parts stand in the order in which they lean on each other.
struct Model {
  Model(ModelConfig model_config, Tokenizer model_tokenizer, std::unique_ptr<Backend> backend,
        EngineOptions engine_options, const SamplingChoice& defaults, std::vector<Token> end_tokens);

  ModelConfig config;
  Tokenizer tokenizer;
  Engine engine;
  Chat chat;
};

/// What a server adds to the opening of a model.
struct OpenHooks {
  /// Bytes that the prefix cache may hold; nothing: a part of the memory that the plan leaves.
  std::optional<std::uint64_t> cache_memory = 0;
  /// The engine's options but for that, chosen when the memory plan is known.
  std::function<EngineOptions(const ModelWeights& model, const MemoryPlan& plan)> engine_options = {};
  LoadProgress progress = {};
};

/// Loads everything, with a progress bar on a terminal. Throws Error for whatever is wrong with the
/// directory, and when the plan does not fit into memory.
std::unique_ptr<Model> open_model(const ModelFlags& flags, const OpenHooks& hooks = {});

}  // namespace calla::cli
