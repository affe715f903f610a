#include "chat/sampling_choice.h"

#include <cmath>
#include <random>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"

namespace calla {
namespace {

template <class T>
T pick(const std::optional<T>& chosen, const std::optional<T>& fallback, T otherwise) {
  return chosen.value_or(fallback.value_or(otherwise));
}

void require(bool holds, std::string_view field, double value, std::string_view range) {
  if (!holds) throw RequestError(field, fmt::format("is {}, and must be {}", value, range));
}

std::uint64_t entropy() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace

SamplingParams resolve(const SamplingChoice& choice, const SamplingChoice& defaults) {
  SamplingParams params;
  params.temperature = pick(choice.temperature, defaults.temperature, params.temperature);
  params.top_k = pick(choice.top_k, defaults.top_k, params.top_k);
  params.top_p = pick(choice.top_p, defaults.top_p, params.top_p);
  params.min_p = pick(choice.min_p, defaults.min_p, params.min_p);
  params.repetition_penalty =
      pick(choice.repetition_penalty, defaults.repetition_penalty, params.repetition_penalty);
  params.presence_penalty = pick(choice.presence_penalty, defaults.presence_penalty, params.presence_penalty);
  params.frequency_penalty =
      pick(choice.frequency_penalty, defaults.frequency_penalty, params.frequency_penalty);
  params.logit_bias = choice.logit_bias;
  params.seed = choice.seed ? *choice.seed : entropy();

  // Written so that NaN is out of every range.
  const auto within = [](float value, float low, float high) { return value >= low && value <= high; };
  require(within(params.temperature, 0, 2), "temperature", params.temperature, "from 0 to 2");
  require(params.top_k >= -1, "top_k", params.top_k, "a number of tokens, or 0 for all");
  require(within(params.top_p, 0, 1) && params.top_p > 0, "top_p", params.top_p, "above 0 and at most 1");
  require(within(params.min_p, 0, 1), "min_p", params.min_p, "from 0 to 1");
  require(within(params.repetition_penalty, 0, 10) && params.repetition_penalty > 0, "repetition_penalty",
          params.repetition_penalty, "above 0 and at most 10");
  require(within(params.presence_penalty, -2, 2), "presence_penalty", params.presence_penalty,
          "from -2 to 2");
  require(within(params.frequency_penalty, -2, 2), "frequency_penalty", params.frequency_penalty,
          "from -2 to 2");
  for (const auto& [token, bias] : params.logit_bias) {
    require(within(bias, -100, 100), fmt::format("logit_bias[\"{}\"]", token), bias, "from -100 to 100");
  }
  return params;
}

}  // namespace calla
