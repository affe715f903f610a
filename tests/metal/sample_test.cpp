#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "metal/sample_slots.h"
#include "metal/sample_support.h"
#include "model/philox.h"
#include "model/sampler.h"

namespace calla::metal {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

Logits rounded(Logits logits, float unit) {
  for (float& logit : logits) logit = std::round(logit / unit) * unit;
  return logits;
}

/// Whether the device's token is the host's, or its neighbour within 1e-6 of the number drawn: weights are
/// floats.
::testing::AssertionResult same_draw(Sampler before, const Logits& logits, const SamplingParams& params,
                                     std::uint64_t draw, Token host, Token device) {
  if (host == device) return ::testing::AssertionSuccess();
  const double random = uniform(params.seed, draw);
  double sum = 0;
  int index = 0;
  for (const Candidate& candidate : before.candidates(logits)) {
    const double from = sum;
    sum += candidate.probability;
    if (candidate.token == device) {
      constexpr double tolerance = 1e-6;
      if (random > from - tolerance && random < sum + tolerance) return ::testing::AssertionSuccess();
      return ::testing::AssertionFailure()
             << fmt::format("host {} device {} (candidate {} at {:.9f} .. {:.9f}), drawn {:.9f}", host,
                            device, index, from, sum, random);
    }
    ++index;
  }
  return ::testing::AssertionFailure()
         << fmt::format("host {} device {}, which is not among {} candidates, drawn {:.9f}", host, device,
                        index, random);
}

std::string name(const SamplingParams& p) {
  return fmt::format("T {} k {} p {} min {} rep {} pre {} fre {} biases {} seed {} of {}", p.temperature,
                     p.top_k, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty, p.frequency_penalty,
                     p.logit_bias.size(), p.seed, p.vocabulary);
}

/// Every way of cutting, alone and together.
std::vector<SamplingParams> cuts(std::span<const float> temperatures) {
  std::vector<SamplingParams> all;
  for (const float temperature : temperatures) {
    const auto add = [&](SamplingParams params) {
      params.temperature = temperature;
      params.seed = 1000 + all.size();
      all.push_back(params);
    };
    add({});
    for (const int top_k : {1, 20, 320, 512, 513, 20000}) add({.top_k = top_k});
    for (const float top_p : {0.0F, 0.1F, 0.5F, 0.8F, 0.95F, 0.999F, 0.999999F}) add({.top_p = top_p});
    for (const float min_p : {1e-6F, 1e-3F, 0.05F, 0.5F, 1.0F, 2.0F}) add({.min_p = min_p});
    add({.top_k = 20, .top_p = 0.95F});
    add({.top_k = 64, .top_p = 0.3F});
    add({.top_k = 1000, .top_p = 0.9F});
    add({.top_k = 40, .min_p = 0.05F});
    add({.top_k = 1500, .min_p = 0.0001F});
    add({.top_p = 0.9F, .min_p = 0.02F});
    add({.top_p = 0.99F, .min_p = 1e-5F});
    add({.top_k = 30, .top_p = 0.9F, .min_p = 0.1F});
    add({.top_k = 3000, .top_p = 0.98F, .min_p = 1e-4F});
  }
  return all;
}

/// Cuts at temperatures from end to end.
std::vector<SamplingParams> cold_and_hot() {
  std::vector<SamplingParams> all;
  for (const float temperature : {1e-38F, 0.001F, 0.05F, 10.0F, 1000.0F}) {
    all.push_back({.temperature = temperature, .seed = all.size()});
    all.push_back({.temperature = temperature, .top_p = 0.9F, .seed = all.size()});
    all.push_back({.temperature = temperature, .min_p = 0.3F, .seed = all.size()});
    all.push_back({.temperature = temperature, .top_k = 50, .top_p = 0.9F, .seed = all.size()});
  }
  return all;
}

/// Draws with each of the parameters, many rows at a time, and compares with the host.
void expect_host_draws(SampleRig& rig, std::span<const SamplingParams> all, const Logits& logits, int draws) {
  for (std::size_t first = 0; first < all.size(); first += sample_slots) {
    const auto some = all.subspan(first, std::min<std::size_t>(sample_slots, all.size() - first));
    std::vector<Sampler> hosts;
    std::vector<int> slot_of_row;
    for (std::size_t i = 0; i < some.size(); ++i) {
      slot_of_row.push_back((static_cast<int>(i) * 7 + 3) % sample_slots);
      rig.set(slot_of_row.back(), some[i]);
      hosts.emplace_back(some[i], std::span<const Token>{});
    }
    for (int draw = 0; draw < draws; ++draw) {
      const auto drawn = rig.draw(std::vector<const Logits*>(some.size(), &logits), slot_of_row);
      for (std::size_t i = 0; i < some.size(); ++i) {
        Sampler before = hosts[i];
        const Token host = hosts[i].draw(logits).token;
        EXPECT_TRUE(drawn[i].has_token);
        EXPECT_TRUE(same_draw(std::move(before), logits, some[i], static_cast<std::uint64_t>(draw), host,
                              drawn[i].sampled.token))
            << name(some[i]) << " draw " << draw;
      }
    }
  }
}

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
  for (const auto& [kind, logits] : {std::pair<const char*, Logits>{"equal", Logits(rig.vocabulary, 1.5F)},
                                     {"rounded", rounded(normal_logits(demo.vocabulary, 3.5F, 4), 0.5F)},
                                     {"close", normal_logits(demo.vocabulary, 1e-4F, 5)}}) {
    SCOPED_TRACE(kind);
    expect_host_draws(rig, all, logits, 2);
  }
}

void greedy(const Shape& shape) {
  SampleRig rig(shape);
  rig.set(0, {.temperature = 0});
  const Logits logits = normal_logits(shape.vocabulary, 3, 6);
  for (const int at : {0, 63, 64, 1024, shape.vocabulary - 1}) {
    Logits one = logits;
    one[static_cast<std::size_t>(at)] = 40;
    EXPECT_EQ(rig.draw(one, 0).sampled.token, at);
    one.back() = 40;
    EXPECT_EQ(rig.draw(one, 0).sampled.token, at);
  }
  EXPECT_EQ(rig.draw(Logits(rig.vocabulary, -2.0F), 0).sampled.token, 0);
  Logits zeros(rig.vocabulary, -1.0F);
  zeros[700] = -0.0F;
  zeros[701] = 0.0F;
  EXPECT_EQ(rig.draw(zeros, 0).sampled.token, 700);
}
TEST(MetalSample, GreedyTakesTheLargestAndTheLowestIdAmongEquals) { greedy(demo); }
TEST(MetalSample, GreedyTakesTheLargestAndTheLowestIdAmongEquals35b) { greedy(qwen36_35b); }

// With each kind of parameters, and where the cut lies within a group, at its beginning and at its end.
TEST(MetalSample, TokensBehindTheVocabularyAreNeverDrawn) {
  SampleRig rig(demo);
  for (const int usable : {1, 63, 64, 65, 2317, 2368, demo.vocabulary}) {
    Logits logits(rig.vocabulary, 0.0F);
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

// Penalties and biases against the host over steps with changing logits, each row its own.
void adjusted(const Shape& shape, int steps, std::size_t kinds) {
  SampleRig rig(shape, shape.vocabulary != demo.vocabulary);
  std::vector<Token> prompt{-1, shape.vocabulary};
  for (Token token = 0; token < shape.vocabulary; token += 13) prompt.push_back(token);
  const int usable = shape.vocabulary - 243;
  const std::vector<std::pair<Token, float>> biases{{5, 3.0F},
                                                    {2000, -infinity},
                                                    {5, 0.1F},
                                                    {7, 14.0F},
                                                    {1, -infinity},
                                                    {usable + 1, 100.0F},
                                                    {-3, 2.0F},
                                                    {130, 6.5F},
                                                    {shape.vocabulary, 1.0F},
                                                    {2047, 9.0F},
                                                    {shape.vocabulary - 1, 1}};
  std::vector<SamplingParams> all{
      {.temperature = 0.9F,
       .top_k = 40,
       .top_p = 0.95F,
       .min_p = 0.01F,
       .repetition_penalty = 1.05F,
       .presence_penalty = 0.3F,
       .frequency_penalty = 0.1F,
       .logit_bias = biases,
       .seed = 6,
       .vocabulary = usable},
      {.temperature = 1, .logit_bias = biases, .seed = 4, .vocabulary = usable},
      {.temperature = 0, .repetition_penalty = 1.3F},
      {.temperature = 0, .presence_penalty = 1.5F},
      {.temperature = 0, .frequency_penalty = 0.7F},
      {.temperature = 0, .repetition_penalty = 0.8F, .presence_penalty = -0.5F, .frequency_penalty = 0.2F},
      {.temperature = 0, .logit_bias = biases},
      {.temperature = 1, .top_k = 20, .presence_penalty = 1.5F, .seed = 1},
      {.temperature = 0.7F, .top_p = 0.9F, .repetition_penalty = 1.1F, .seed = 2},
      {.temperature = 1,
       .repetition_penalty = 1.2F,
       .frequency_penalty = 0.4F,
       .seed = 3,
       .vocabulary = usable},
      {.temperature = 1.2F, .min_p = 0.05F, .logit_bias = biases, .seed = 5},
      {.temperature = 1, .top_k = 700, .presence_penalty = 2, .seed = 7},
      {.temperature = 0},
  };
  all.resize(std::min(all.size(), kinds));
  std::vector<Sampler> hosts;
  std::vector<int> slot_of_row;
  for (std::size_t i = 0; i < all.size(); ++i) {
    slot_of_row.push_back(static_cast<int>(all.size() - i));
    rig.set(slot_of_row.back(), all[i], prompt);
    hosts.emplace_back(all[i], prompt);
  }
  std::vector<bool> apart(all.size());  // after a draw at a border the histories differ
  for (int step = 0; step < steps; ++step) {
    // Few different logits, so that tokens come again.
    const Logits logits = peaked_logits(shape.vocabulary, 20 + static_cast<unsigned>(step % 2));
    const auto drawn = rig.draw(std::vector<const Logits*>(all.size(), &logits), slot_of_row);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (apart[i]) continue;
      Sampler before = hosts[i];
      const Token host = hosts[i].draw(logits).token;
      apart[i] = host != drawn[i].sampled.token;
      EXPECT_TRUE(same_draw(std::move(before), logits, all[i], static_cast<std::uint64_t>(step), host,
                            drawn[i].sampled.token))
          << name(all[i]) << " step " << step;
    }
  }
  EXPECT_LE(std::count(apart.begin(), apart.end(), true), 1);

  // Set anew, nothing of the past counts.
  rig.set(slot_of_row[0], all[0], prompt);
  const Logits logits = peaked_logits(shape.vocabulary, 20);
  EXPECT_EQ(rig.draw(logits, slot_of_row[0]).sampled.token, Sampler(all[0], prompt).draw(logits).token);
}
TEST(MetalSample, PenaltiesAndBiasesOverSteps) { adjusted(demo, 20, 20); }
TEST(MetalSample, PenaltiesAndBiasesOverSteps35b) { adjusted(qwen36_35b, 3, 3); }

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

void logprobs(const Shape& shape, std::span<const int> counts) {
  SampleRig rig(shape);
  for (const auto& [kind, logits] :
       {std::pair<const char*, Logits>{"peaked", peaked_logits(shape.vocabulary, 8)},
        {"rounded", rounded(normal_logits(shape.vocabulary, 3.5F, 9), 0.25F)}}) {
    SCOPED_TRACE(kind);
    for (const int count : counts) {
      const SamplingParams params{.temperature = 0.8F,
                                  .top_k = 20,
                                  .logit_bias = {{4, 20.0F}},
                                  .seed = 5,
                                  .vocabulary = shape.vocabulary - 300,
                                  .top_logprobs = count};
      rig.set(2, params);
      const SampledToken device = rig.draw(logits, 2).sampled;
      const SampledToken host = Sampler(params, {}).draw(logits);
      EXPECT_EQ(device.token, host.token);
      // Group sums are float: 1e-7, and the result has three digits before the point.
      EXPECT_NEAR(device.logprob, host.logprob, 2e-6);
      ASSERT_EQ(device.top_logprobs.size(), host.top_logprobs.size());
      for (std::size_t i = 0; i < host.top_logprobs.size(); ++i) {
        EXPECT_EQ(device.top_logprobs[i].token, host.top_logprobs[i].token) << count << ", " << i;
        EXPECT_NEAR(device.top_logprobs[i].logprob, host.top_logprobs[i].logprob, 2e-6);
      }
    }
  }
}
TEST(MetalSample, LogprobsAreTheModels) { logprobs(demo, std::vector{0, 1, 5, 20}); }
TEST(MetalSample, LogprobsAreTheModels35b) { logprobs(qwen36_35b, std::vector{20}); }

TEST(MetalSample, LogprobsOfEqualLogits) {
  SampleRig rig(demo);
  rig.set(1, {.temperature = 0, .top_logprobs = 20});
  const SampledToken drawn = rig.draw(Logits(rig.vocabulary, -3.0F), 1).sampled;
  EXPECT_EQ(drawn.token, 0);
  ASSERT_EQ(drawn.top_logprobs.size(), 20U);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(drawn.top_logprobs[i].token, static_cast<Token>(i));
    EXPECT_NEAR(drawn.top_logprobs[i].logprob, -std::log(static_cast<double>(rig.vocabulary)), 1e-6);
  }
  rig.set(1, {.temperature = 0});
  EXPECT_TRUE(rig.draw(Logits(rig.vocabulary, 0.0F), 1).sampled.top_logprobs.empty());
}

}  // namespace
}  // namespace calla::metal
