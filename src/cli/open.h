// From flags to a model ready to run.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "chat/chat.h"
#include "checkpoint/config.h"
#include "cli/commands.h"
#include "engine/engine.h"
#include "model/memory_plan.h"
#include "text/tokenizer.h"

namespace calla::cli {

/// The directory that the flags mean. Throws Error when it does not exist.
std::filesystem::path model_directory(const ModelFlags& flags);

/// The memory plan for the flags: the context asked for, or the longest that the model knows and `available`
/// bytes hold.
MemoryPlan plan_memory(const ModelFlags& flags, const ModelConfig& config, std::uint64_t weight_bytes,
                       std::optional<std::uint64_t> available);

/// A loaded model: the parts stand in the order in which they lean on each other.
struct Model {
  Model(ModelConfig model_config, Tokenizer model_tokenizer, std::unique_ptr<Backend> backend,
        const SamplingChoice& defaults, std::vector<Token> end_tokens);

  ModelConfig config;
  Tokenizer tokenizer;
  Engine engine;
  Chat chat;
};

/// Loads everything, with a progress bar on a terminal. Throws Error for whatever is wrong with the
/// directory, and when the plan does not fit into memory.
std::unique_ptr<Model> open_model(const ModelFlags& flags);

}  // namespace calla::cli
