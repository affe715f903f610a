// config.json and generation_config.json: which model a directory holds, checked field by field.
#pragma once
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/token.h"
#include "model/shape.h"

namespace calla {

struct ModelConfig {
  Shape shape{};                  // one of the shapes of model/shape.h, perhaps with fewer layers
  int context = 0;                // max_position_embeddings
  std::vector<Token> end_tokens;  // eos_token_id, of the top level when given there, else of text_config
};

/// Reads DIRECTORY/config.json. Every field that changes the arithmetic must be what the engine computes; the
/// Error names the field, its value and the expected one, and says in plain words when it is another model (a
/// dense Qwen, BF16 weights, another quantisation).
ModelConfig read_config(const std::filesystem::path& directory);
ModelConfig parse_config(const Json& config, std::string_view where);

/// What the model's makers recommend for sampling; absent fields are absent.
struct GenerationConfig {
  std::optional<bool> do_sample;
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<float> repetition_penalty;
  std::vector<Token> end_tokens;
};

/// Reads DIRECTORY/generation_config.json; a missing file gives an empty object.
GenerationConfig read_generation_config(const std::filesystem::path& directory);
GenerationConfig parse_generation_config(const Json& config, std::string_view where);

}  // namespace calla
