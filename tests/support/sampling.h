// What sampling on a device must do, against the host's sampler. A Rig makes steps whose logits the test has
// made up: at most Rig::max_rows of Rig::slot_count slots in one; rig.vocabulary; rig.set(slot, params,
// prompt); rig.draw(logits, slot), or rig.draw(logits_of_rows, slot_of_row), which give what was drawn.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "model/philox.h"
#include "model/sampler.h"
#include "support/logits.h"

namespace calla::test {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

template <class Rig>
Logits filled(const Rig& rig, float value) {
  return Logits(static_cast<std::size_t>(rig.vocabulary), value);
}

inline Logits rounded(Logits logits, float unit) {
  for (float& logit : logits) logit = std::round(logit / unit) * unit;
  return logits;
}

/// Whether the device's token is the host's, or its neighbour within 1e-6 of the number drawn: weights are
/// floats.
inline ::testing::AssertionResult same_draw(Sampler before, const Logits& logits,
                                            const SamplingParams& params, std::uint64_t draw, Token host,
                                            Token device) {
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

inline std::string name(const SamplingParams& p) {
  return fmt::format("T {} k {} p {} min {} rep {} pre {} fre {} biases {} seed {} of {}", p.temperature,
                     p.top_k, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty, p.frequency_penalty,
                     p.logit_bias.size(), p.seed, p.vocabulary);
}

/// Every way of cutting, alone and together.
inline std::vector<SamplingParams> cuts(std::span<const float> temperatures) {
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
inline std::vector<SamplingParams> cold_and_hot() {
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
template <class Rig>
void expect_host_draws(Rig& rig, std::span<const SamplingParams> all, const Logits& logits, int draws) {
  for (std::size_t first = 0; first < all.size(); first += Rig::max_rows) {
    const auto some = all.subspan(first, std::min<std::size_t>(Rig::max_rows, all.size() - first));
    std::vector<Sampler> hosts;
    std::vector<int> slot_of_row;
    for (std::size_t i = 0; i < some.size(); ++i) {
      slot_of_row.push_back((static_cast<int>(i) * 7 + 3) % Rig::slot_count);
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

/// With ties, zeros of both signs, and tokens at the borders of groups.
template <class Rig>
void expect_greedy(Rig& rig) {
  rig.set(0, {.temperature = 0});
  const Logits logits = normal_logits(rig.vocabulary, 3, 6);
  for (const int at : {0, 1, 63, 64, 127, 1023, 1024, rig.vocabulary - 1}) {
    Logits one = logits;
    one[static_cast<std::size_t>(at)] = 40;
    EXPECT_EQ(rig.draw(one, 0).sampled.token, at);
    one.back() = 40;
    EXPECT_EQ(rig.draw(one, 0).sampled.token, at);
  }
  EXPECT_EQ(rig.draw(filled(rig, -2.0F), 0).sampled.token, 0);
  Logits zeros = filled(rig, -1.0F);
  zeros[700] = -0.0F;
  zeros[701] = 0.0F;
  EXPECT_EQ(rig.draw(zeros, 0).sampled.token, 700);
  const int usable = rig.vocabulary - 243;
  rig.set(0, {.temperature = 0, .vocabulary = usable});
  Logits beyond = logits;
  beyond[static_cast<std::size_t>(usable) - 1] = 30;
  beyond[static_cast<std::size_t>(usable)] = 31;
  EXPECT_EQ(rig.draw(beyond, 0).sampled.token, usable - 1);
}
/// Penalties and biases against the host over steps with changing logits, each row its own:
/// the first `kinds` of these parameters.
template <class Rig>
void expect_adjusted_draws(Rig& rig, int steps, std::size_t kinds) {
  std::vector<Token> prompt{-1, rig.vocabulary};
  for (Token token = 0; token < rig.vocabulary; token += 13) prompt.push_back(token);
  const int usable = rig.vocabulary - 243;
  const std::vector<std::pair<Token, float>> biases{{5, 3.0F},
                                                    {2000, -infinity},
                                                    {5, 0.1F},
                                                    {7, 14.0F},
                                                    {1, -infinity},
                                                    {usable + 1, 100.0F},
                                                    {-3, 2.0F},
                                                    {130, 6.5F},
                                                    {rig.vocabulary, 1.0F},
                                                    {2047, 9.0F},
                                                    {rig.vocabulary - 1, 1}};
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
    const Logits logits = peaked_logits(rig.vocabulary, 20 + static_cast<unsigned>(step % 2));
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
  const Logits logits = peaked_logits(rig.vocabulary, 20);
  EXPECT_EQ(rig.draw(logits, slot_of_row[0]).sampled.token, Sampler(all[0], prompt).draw(logits).token);
}
/// As many alternatives as each of the counts.
template <class Rig>
void expect_logprobs(Rig& rig, std::span<const int> counts) {
  for (const auto& [kind, logits] :
       {std::pair<const char*, Logits>{"peaked", peaked_logits(rig.vocabulary, 8)},
        {"rounded", rounded(normal_logits(rig.vocabulary, 3.5F, 9), 0.25F)}}) {
    SCOPED_TRACE(kind);
    for (const int count : counts) {
      const SamplingParams params{.temperature = 0.8F,
                                  .top_k = 20,
                                  .logit_bias = {{4, 20.0F}},
                                  .seed = 5,
                                  .vocabulary = rig.vocabulary - 300,
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

/// All are as probable, and the lowest ids are first; without a wish there are none.
template <class Rig>
void expect_logprobs_of_equals(Rig& rig) {
  rig.set(1, {.temperature = 0, .top_logprobs = 20});
  const SampledToken drawn = rig.draw(filled(rig, -3.0F), 1).sampled;
  EXPECT_EQ(drawn.token, 0);
  ASSERT_EQ(drawn.top_logprobs.size(), 20U);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(drawn.top_logprobs[i].token, static_cast<Token>(i));
    EXPECT_NEAR(drawn.top_logprobs[i].logprob, -std::log(static_cast<double>(rig.vocabulary)), 1e-6);
  }
  rig.set(1, {.temperature = 0});
  EXPECT_TRUE(rig.draw(filled(rig, 0.0F), 1).sampled.top_logprobs.empty());
}

}  // namespace calla::test
