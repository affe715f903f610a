// What a person or client chooses of the sampling, over what the model's makers recommend.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "model/sampling.h"

namespace calla {

/// Each value may be left out.
struct SamplingChoice {
  std::optional<float> temperature = {};
  std::optional<int> top_k = {};
  std::optional<float> top_p = {};
  std::optional<float> min_p = {};
  std::optional<float> repetition_penalty = {};
  std::optional<float> presence_penalty = {};
  std::optional<float> frequency_penalty = {};
  std::vector<std::pair<Token, float>> logit_bias = {};
  std::optional<std::uint64_t> seed = {};  // left out: drawn from the system's entropy
};

/// `choice` over `defaults` over SamplingParams' own. Throws RequestError that names the field when a value
/// is out of range.
SamplingParams resolve(const SamplingChoice& choice, const SamplingChoice& defaults);

}  // namespace calla
