#include "chat/sampling_choice.h"

#include <limits>

#include <gtest/gtest.h>

#include "base/error.h"

namespace calla {
namespace {

TEST(SamplingChoice, ChosenValuesWinOverDefaultsAndDefaultsOverNothing) {
  const SamplingParams params = resolve({.temperature = 0.3F}, {.temperature = 1.0F, .top_k = 20});
  EXPECT_FLOAT_EQ(params.temperature, 0.3F);
  EXPECT_EQ(params.top_k, 20);
  EXPECT_FLOAT_EQ(params.top_p, 1.0F);
  EXPECT_FLOAT_EQ(params.presence_penalty, 0.0F);
}

TEST(SamplingChoice, WithoutASeedEachRequestHasItsOwn) {
  EXPECT_NE(resolve({}, {}).seed, resolve({}, {}).seed);
  EXPECT_EQ(resolve({.seed = 5}, {}).seed, 5U);
}

TEST(SamplingChoice, OutOfRangeIsRefusedByName) {
  const auto param_of = [](const SamplingChoice& choice) -> std::string {
    try {
      resolve(choice, {});
    } catch (const RequestError& fault) {
      return fault.param();
    }
    return "accepted";
  };
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(param_of({.temperature = nan}), "temperature");
  EXPECT_EQ(param_of({.temperature = 2.1F}), "temperature");
  EXPECT_EQ(param_of({.top_k = -2}), "top_k");
  EXPECT_EQ(param_of({.top_p = 0.0F}), "top_p");
  EXPECT_EQ(param_of({.min_p = 1.1F}), "min_p");
  EXPECT_EQ(param_of({.repetition_penalty = 0.0F}), "repetition_penalty");
  EXPECT_EQ(param_of({.presence_penalty = 3.0F}), "presence_penalty");
  EXPECT_EQ(param_of({.frequency_penalty = nan}), "frequency_penalty");
  EXPECT_EQ(param_of({.logit_bias = {{7, 101.0F}}}), "logit_bias[\"7\"]");
  EXPECT_EQ(param_of({.temperature = 0.0F, .top_k = -1, .top_p = 1.0F}), "accepted");
}

}  // namespace
}  // namespace calla
