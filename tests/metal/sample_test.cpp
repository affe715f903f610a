#include <algorithm>
#include <array>
#include <utility>

#include <gtest/gtest.h>

#include "metal/sample_slots.h"
#include "metal/sample_support.h"
#include "support/sampling.h"

namespace calla::metal {
namespace {

using namespace test;

TEST(MetalSample, EveryCutDrawsAsTheHostDoes) {
  SampleRig rig(demo, false);
  const std::vector<SamplingParams> all = cuts(std::vector{1.0F, 0.6F, 1.7F});
  for (const auto& [kind, logits] :
       {std::pair<const char*, Logits>{"peaked", peaked_logits(demo.vocabulary, 1)},
        {"normal", normal_logits(demo.vocabulary, 3.5F, 2)},
        {"flat", normal_logits(demo.vocabulary, 0.5F, 3)}}) {
    SCOPED_TRACE(kind);
    expect_host_draws(rig, all, logits, 2);
    expect_host_draws(rig, cold_and_hot(), logits, 1);
  }
}

TEST(MetalSample, EveryCutDrawsAsTheHostDoes35b) {
  SampleRig rig(qwen36_35b);
  const Logits peaked = peaked_logits(qwen36_35b.vocabulary, 1);
  const std::vector<SamplingParams> usual{{.temperature = 1, .seed = 1},
                                          {.temperature = 1, .top_k = 20, .top_p = 0.95F, .seed = 2},
                                          {.temperature = 0.7F, .top_k = 20, .top_p = 0.8F, .seed = 3},
                                          {.temperature = 0.6F, .top_p = 0.95F, .seed = 4},
                                          {.temperature = 1, .min_p = 0.05F, .seed = 5},
                                          {.temperature = 1, .top_k = 400, .seed = 6}};
  expect_host_draws(rig, usual, peaked, 3);
  const std::vector<SamplingParams> deep{
      {.temperature = 1, .top_k = 20000, .top_p = 0.95F, .seed = 7},
      {.temperature = 1.2F, .top_p = 0.999999F, .min_p = 1e-7F, .seed = 8}};
  expect_host_draws(rig, deep, normal_logits(qwen36_35b.vocabulary, 3.5F, 2), 1);
}

// Where many logits are equal, the order of ids decides, and lists overflow.
TEST(MetalSample, TiesAreInTheOrderOfIds) {
  SampleRig rig(demo, false);
  const std::vector<SamplingParams> all = cuts(std::vector{1.0F});
  for (const auto& [kind, logits] : {std::pair<const char*, Logits>{"equal", filled(rig, 1.5F)},
                                     {"rounded", rounded(normal_logits(demo.vocabulary, 3.5F, 4), 0.5F)},
                                     {"close", normal_logits(demo.vocabulary, 1e-4F, 5)}}) {
    SCOPED_TRACE(kind);
    expect_host_draws(rig, all, logits, 2);
  }
}

TEST(MetalSample, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  for (const Shape& shape : {demo, qwen36_35b}) {
    SampleRig rig(shape);
    expect_greedy(rig);
  }
}

// With each kind of parameters, and where the cut lies within a group, at its beginning and at its end.
TEST(MetalSample, TokensBehindTheVocabularyAreNeverDrawn) {
  SampleRig rig(demo);
  for (const int usable : {1, 63, 64, 65, 2317, 2368, demo.vocabulary}) {
    Logits logits = filled(rig, 0.0F);
    const auto end = static_cast<std::size_t>(usable);
    logits[end - 1] = 30;
    std::fill(logits.begin() + usable, logits.end(), 31.0F);
    std::vector<SamplingParams> all{{.temperature = 0},
                                    {.temperature = 0, .presence_penalty = 0.1F},
                                    {.temperature = 1},
                                    {.temperature = 1, .top_k = 5},
                                    {.temperature = 1, .top_k = 2000},
                                    {.temperature = 1, .top_p = 0.5F},
                                    {.temperature = 1, .min_p = 0.1F}};
    std::vector<int> slot_of_row;
    for (SamplingParams& params : all) {
      params.vocabulary = usable;
      slot_of_row.push_back(static_cast<int>(slot_of_row.size()));
      rig.set(slot_of_row.back(), params);
    }
    const auto drawn = rig.draw(std::vector<const Logits*>(all.size(), &logits), slot_of_row);
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(drawn[i].sampled.token, usable - 1) << name(all[i]);
    // Alone, greedy rows take another kernel.
    EXPECT_EQ(rig.draw(logits, 0).sampled.token, usable - 1);
  }
}

TEST(MetalSample, PenaltiesAndBiasesOverSteps) {
  SampleRig rig(demo, false);
  expect_adjusted_draws(rig, 20, 20);
}
TEST(MetalSample, PenaltiesAndBiasesOverSteps35b) {
  SampleRig rig(qwen36_35b);
  expect_adjusted_draws(rig, 3, 3);
}

TEST(MetalSample, BiasesForbidAndForce) {
  SampleRig rig(demo);
  const Logits logits = normal_logits(demo.vocabulary, 3, 14);
  // More biases than a slot has room for at first, and those of another slot stay as they are.
  rig.set(3, {.temperature = 0, .logit_bias = {{44, infinity}}});
  SamplingParams params{.temperature = 1, .seed = 5};
  for (Token token = 0; token < demo.vocabulary; ++token) {
    if (token != 17 && token != 2000) params.logit_bias.emplace_back(token, -infinity);
  }
  rig.set(5, params);
  rig.set(6, {.temperature = 1, .logit_bias = {{1999, infinity}}, .seed = 7});
  Sampler host(params, {});
  for (int i = 0; i < 4; ++i) {
    const auto drawn = rig.draw({&logits, &logits, &logits}, {3, 5, 6});
    EXPECT_EQ(drawn[0].sampled.token, 44);
    EXPECT_EQ(drawn[1].sampled.token, host.draw(logits).token);
    EXPECT_EQ(drawn[2].sampled.token, 1999);
  }
}

TEST(MetalSample, LogprobsAreTheModels) {
  SampleRig rig(demo);
  expect_logprobs(rig, std::array{0, 1, 5, 20});
  expect_logprobs_of_equals(rig);
}
TEST(MetalSample, LogprobsAreTheModels35b) {
  SampleRig rig(qwen36_35b);
  expect_logprobs(rig, std::array{20});
}

}  // namespace
}  // namespace calla::metal
