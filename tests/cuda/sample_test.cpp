#include "cuda/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/sample_support.h"
#include "model/philox.h"
#include "model/sampler.h"

namespace calla::cuda {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
Logits rounded(Logits logits, float unit) {
  for (float& logit : logits) logit = std::round(logit / unit) * unit;
  return logits;
}

/// Whether the device's token is the host's, or its neighbour within 1e-6 of the number drawn.
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
  return ::testing::AssertionFailure() << fmt::format(
             "host {} (logit {}) device {} (logit {}), which is not among {} candidates, drawn {:.9f}", host,
             logits[static_cast<std::size_t>(host)], device,
             device < 0 || static_cast<std::size_t>(device) >= logits.size()
                 ? 0
                 : logits[static_cast<std::size_t>(device)],
             index, random);
}

std::string name(const SamplingParams& p) {
  return fmt::format("T {} k {} p {} min {} rep {} pre {} fre {} biases {} seed {} of {}", p.temperature,
                     p.top_k, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty, p.frequency_penalty,
                     p.logit_bias.size(), p.seed, p.vocabulary);
}

/// Every way of cutting, alone and together.
std::vector<SamplingParams> cuts() {
  std::vector<SamplingParams> all;
  for (const float temperature : {1.0F, 0.6F, 1.7F}) {
    const auto add = [&](SamplingParams params) {
      params.temperature = temperature;
      params.seed = 1000 + all.size();
      all.push_back(params);
    };
    add({});
    for (const int top_k : {1, 2, 20, 64, 100, 320, 321, 1000, 2300, 5000, 1000000}) add({.top_k = top_k});
    for (const float top_p : {0.0F, 0.1F, 0.5F, 0.8F, 0.95F, 0.999F, 0.999999F}) add({.top_p = top_p});
    for (const float min_p : {1e-6F, 1e-3F, 0.05F, 0.5F, 1.0F}) add({.min_p = min_p});
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
  for (const float temperature : {0.001F, 0.05F, 10.0F, 1000.0F}) {
    all.push_back({.temperature = temperature, .seed = all.size()});
    all.push_back({.temperature = temperature, .top_p = 0.9F, .seed = all.size()});
    all.push_back({.temperature = temperature, .top_k = 50, .top_p = 0.9F, .seed = all.size()});
  }
  return all;
}

/// Draws with each of the parameters, 16 rows at a time, and compares with the host.
template <Shape S>
void expect_host_draws(SampleRig<S>& rig, std::span<const SamplingParams> all, const Logits& logits,
                       int draws) {
  for (std::size_t first = 0; first < all.size(); first += sample_rows) {
    const auto some = all.subspan(first, std::min<std::size_t>(sample_rows, all.size() - first));
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

template <Shape S>
void cuts_agree(int draws) {
  SampleRig<S> rig;
  const auto all = cuts();
  for (const auto& [kind, logits] : {std::pair<const char*, Logits>{"peaked", peaked_logits(S.vocabulary, 1)},
                                     {"normal", normal_logits(S.vocabulary, 3.5F, 2)},
                                     {"flat", normal_logits(S.vocabulary, 0.5F, 3)}}) {
    SCOPED_TRACE(kind);
    expect_host_draws<S>(rig, all, logits, draws);
  }
}
TEST(CudaSample, EveryCutDrawsAsTheHostDoesDemo) { cuts_agree<demo>(20); }
TEST(CudaSample, EveryCutDrawsAsTheHostDoes35b) { cuts_agree<qwen36_35b>(2); }

// Where many logits are equal, the order of ids decides, and lists overflow.
template <Shape S>
void ties_agree(int draws) {
  SampleRig<S> rig;
  auto all = cuts();
  all.resize(26);
  for (const auto& [kind, logits] : {std::pair<const char*, Logits>{"equal", Logits(S.vocabulary, 1.5F)},
                                     {"rounded", rounded(normal_logits(S.vocabulary, 3.5F, 4), 0.5F)},
                                     {"close", normal_logits(S.vocabulary, 1e-4F, 5)}}) {
    SCOPED_TRACE(kind);
    expect_host_draws<S>(rig, all, logits, draws);
  }
}
TEST(CudaSample, TiesAreInTheOrderOfIdsDemo) { ties_agree<demo>(5); }
TEST(CudaSample, TiesAreInTheOrderOfIds35b) { ties_agree<qwen36_35b>(2); }

template <Shape S>
void greedy() {
  SampleRig<S> rig;
  rig.set(0, {.temperature = 0});
  Logits logits = normal_logits(S.vocabulary, 3, 6);
  for (const int at : {0, 1, 63, 64, 127, 1023, 1024, S.vocabulary - 1}) {
    Logits one = logits;
    one[static_cast<std::size_t>(at)] = 40;
    EXPECT_EQ(rig.draw(one, 0).sampled.token, at);
    one.back() = 40;
    EXPECT_EQ(rig.draw(one, 0).sampled.token, at);
  }
  EXPECT_EQ(rig.draw(Logits(S.vocabulary, -2.0F), 0).sampled.token, 0);
  Logits zeros(S.vocabulary, -1.0F);
  zeros[700] = -0.0F;
  zeros[701] = 0.0F;
  EXPECT_EQ(rig.draw(zeros, 0).sampled.token, 700);
  const int usable = S.vocabulary - 243;
  rig.set(0, {.temperature = 0, .vocabulary = usable});
  Logits beyond = logits;
  beyond[static_cast<std::size_t>(usable) - 1] = 30;
  beyond[static_cast<std::size_t>(usable)] = 31;
  EXPECT_EQ(rig.draw(beyond, 0).sampled.token, usable - 1);
}
TEST(CudaSample, GreedyTakesTheLargestAndTheLowestIdAmongEqualsDemo) { greedy<demo>(); }
TEST(CudaSample, GreedyTakesTheLargestAndTheLowestIdAmongEquals35b) { greedy<qwen36_35b>(); }

// Penalties and biases against the host over steps with changing logits, each row its own.
template <Shape S>
void adjusted(int steps) {
  SampleRig<S> rig;
  std::vector<Token> prompt;
  for (Token token = 0; token < S.vocabulary; token += 13) prompt.push_back(token);
  const int usable = S.vocabulary - 243;
  std::vector<std::pair<Token, float>> biases{{5, 3.0F},   {2000, -infinity}, {5, 0.1F},
                                              {7, 14.0F},  {1, -infinity},    {usable + 1, 100.0F},
                                              {-3, 2.0F},  {130, 6.5F},       {S.vocabulary, 1.0F},
                                              {2047, 9.0F}};
  const std::vector<SamplingParams> all{
      {.temperature = 0, .presence_penalty = 1.5F},
      {.temperature = 0, .frequency_penalty = 0.7F},
      {.temperature = 0, .repetition_penalty = 1.3F},
      {.temperature = 0, .repetition_penalty = 0.8F, .presence_penalty = -0.5F, .frequency_penalty = 0.2F},
      {.temperature = 0, .logit_bias = biases},
      {.temperature = 1, .top_k = 20, .presence_penalty = 1.5F, .seed = 1},
      {.temperature = 0.7F, .top_p = 0.9F, .repetition_penalty = 1.1F, .seed = 2},
      {.temperature = 1,
       .repetition_penalty = 1.2F,
       .frequency_penalty = 0.4F,
       .seed = 3,
       .vocabulary = usable},
      {.temperature = 1, .logit_bias = biases, .seed = 4, .vocabulary = usable},
      {.temperature = 1.2F, .min_p = 0.05F, .logit_bias = biases, .seed = 5},
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
      {.temperature = 1, .top_k = 700, .presence_penalty = 2, .seed = 7},
  };
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
    const Logits logits = peaked_logits(S.vocabulary, 20 + static_cast<unsigned>(step % 2));
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
  const Logits logits = peaked_logits(S.vocabulary, 20);
  EXPECT_EQ(rig.draw(logits, slot_of_row[0]).sampled.token, Sampler(all[0], prompt).draw(logits).token);
}
TEST(CudaSample, PenaltiesAndBiasesOverStepsDemo) { adjusted<demo>(40); }
TEST(CudaSample, PenaltiesAndBiasesOverSteps35b) { adjusted<qwen36_35b>(12); }

template <Shape S>
void logprobs() {
  SampleRig<S> rig;
  for (const auto& [kind, logits] : {std::pair<const char*, Logits>{"peaked", peaked_logits(S.vocabulary, 8)},
                                     {"normal", normal_logits(S.vocabulary, 3.5F, 9)},
                                     {"rounded", rounded(normal_logits(S.vocabulary, 3.5F, 9), 0.25F)},
                                     {"equal", Logits(S.vocabulary, -3.0F)}}) {
    SCOPED_TRACE(kind);
    for (const int count : {0, 1, 5, 20}) {
      const SamplingParams params{.temperature = 0.8F,
                                  .top_k = 20,
                                  .logit_bias = {{4, 20.0F}},
                                  .seed = 5,
                                  .vocabulary = S.vocabulary - 300,
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
  rig.set(2, {.temperature = 0});
  EXPECT_TRUE(rig.draw(Logits(S.vocabulary, 0.0F), 2).sampled.top_logprobs.empty());
}
TEST(CudaSample, LogprobsAreTheModelsDemo) { logprobs<demo>(); }
TEST(CudaSample, LogprobsAreTheModels35b) { logprobs<qwen36_35b>(); }

TEST(CudaSample, AnEndTokenEndsTheSlot) {
  SampleRig<demo> rig;
  Logits logits = normal_logits(demo.vocabulary, 1, 10);
  logits[77] = 20;
  Logits ending = logits;
  ending[99] = 30;
  const SamplingParams params{.temperature = 0, .frequency_penalty = 0.5F, .end_tokens = {3, 99, 500}};
  rig.set(4, params);
  rig.slots.place(4, 100, rig.stream.get());
  EXPECT_EQ(rig.draw(logits, 4).sampled.token, 77);
  EXPECT_EQ(rig.position(4), 101);
  const DrawnRow end = rig.draw(ending, 4);
  EXPECT_TRUE(end.has_token);
  EXPECT_TRUE(end.sampled.end);
  EXPECT_EQ(end.sampled.token, 99);
  EXPECT_EQ(rig.position(4), 101);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(rig.draw(logits, 4).has_token);
    EXPECT_EQ(rig.position(4), 101);
  }
  rig.slots.place(4, 7, rig.stream.get());
  EXPECT_EQ(rig.draw(logits, 4).sampled.token, 77);
  EXPECT_EQ(rig.position(4), 8);
}

TEST(CudaSample, RowsWithoutASlotGiveNothing) {
  SampleRig<demo> rig;
  const Logits logits = peaked_logits(demo.vocabulary, 11);
  for (int rows = 1; rows <= sample_rows; ++rows) {
    std::vector<int> slot_of_row;
    std::vector<const Logits*> of_row;
    for (int row = 0; row < rows; ++row) {
      slot_of_row.push_back(row % 3 == 1 ? -1 : sample_slots - 1 - row);
      of_row.push_back(&logits);
      if (slot_of_row.back() >= 0)
        rig.set(slot_of_row.back(), {.temperature = 1, .top_k = 20, .seed = static_cast<std::uint64_t>(row)});
    }
    const auto drawn = rig.draw(of_row, slot_of_row);
    for (int row = 0; row < rows; ++row) {
      const auto& result = drawn[static_cast<std::size_t>(row)];
      EXPECT_EQ(result.has_token, row % 3 != 1);
      if (!result.has_token) continue;
      Sampler host({.temperature = 1, .top_k = 20, .seed = static_cast<std::uint64_t>(row)}, {});
      EXPECT_EQ(result.sampled.token, host.draw(logits).token) << rows << ", " << row;
    }
  }
}

TEST(CudaSample, ALogitThatIsNotFiniteIsAFault) {
  for (const float bad : {std::nanf(""), infinity, -infinity}) {
    SampleRig<demo> rig;
    Logits logits = normal_logits(demo.vocabulary, 1, 12);
    const Logits good = logits;
    logits[1234] = bad;
    rig.set(0, {.temperature = 0});
    rig.set(1, {.temperature = 0});
    const auto drawn = rig.draw({&logits, &good}, {0, 1});
    EXPECT_TRUE(drawn[0].fault);
    EXPECT_FALSE(drawn[0].has_token);
    EXPECT_FALSE(drawn[1].fault);
    EXPECT_TRUE(drawn[1].has_token);
  }
}

// A row's record is the same to the bit, alone and among others, run after run, also from a graph.
TEST(CudaSample, ARowDoesNotDependOnOthersOrOnChance) {
  SampleRig<qwen36_35b> rig;
  const Logits logits = normal_logits(qwen36_35b.vocabulary, 3.0F, 13);
  std::vector<SamplingParams> all = cuts();
  all.resize(sample_rows);
  std::vector<const Logits*> of_row(sample_rows, &logits);
  std::vector<int> slot_of_row;
  for (int row = 0; row < sample_rows; ++row) {
    all[static_cast<std::size_t>(row)].top_logprobs = 20;
    slot_of_row.push_back(row);
  }
  const auto set_all = [&] {
    for (int row = 0; row < sample_rows; ++row) rig.set(row, all[static_cast<std::size_t>(row)]);
  };
  const auto same = [](const DrawnRow& a, const DrawnRow& b) {
    const auto& x = a.sampled.top_logprobs;
    const auto& y = b.sampled.top_logprobs;
    return a.sampled.token == b.sampled.token && a.sampled.logprob == b.sampled.logprob &&
           std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [](const TokenLogprob& p, const TokenLogprob& q) {
                        return p.token == q.token && p.logprob == q.logprob;
                      });
  };
  set_all();
  const auto first = rig.draw(of_row, slot_of_row);
  for (int again = 0; again < 5; ++again) {
    set_all();
    const auto drawn = rig.draw(of_row, slot_of_row);
    for (std::size_t row = 0; row < sample_rows; ++row) EXPECT_TRUE(same(drawn[row], first[row])) << row;
  }
  set_all();
  for (int row = 0; row < sample_rows; ++row)
    EXPECT_TRUE(same(rig.draw(logits, row), first[static_cast<std::size_t>(row)])) << row;

  set_all();
  check(cudaStreamSynchronize(rig.stream.get()), "setting");
  rig.load(of_row, slot_of_row);
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(rig.stream.get(), cudaStreamCaptureModeThreadLocal), "capturing");
  launch_sample<qwen36_35b>(rig.step(), sample_rows, rig.stream.get());
  launch_sample<qwen36_35b>(rig.step(), sample_rows, rig.stream.get());
  check(cudaStreamEndCapture(rig.stream.get(), &graph), "capturing");
  cudaGraphExec_t instance = nullptr;
  check(cudaGraphInstantiate(&instance, graph, 0), "making the graph");
  const GraphExec exec(instance);
  check(cudaGraphDestroy(graph), "dropping the graph");
  for (int launch = 0; launch < 3; ++launch) {
    check(cudaGraphLaunch(exec.get(), rig.stream.get()), "launching the graph");
    check(cudaStreamSynchronize(rig.stream.get()), "running the graph");
    rig.steps += 2;
    for (int row = 0; row < sample_rows; ++row) {
      EXPECT_FALSE(rig.slots.read(rig.steps + 1, row).has_value());
      const auto drawn = rig.slots.read(rig.steps - 1, row);
      ASSERT_TRUE(drawn.has_value());
      if (launch == 0) {
        EXPECT_TRUE(same(*drawn, first[static_cast<std::size_t>(row)])) << row;
      }
    }
  }
}

}  // namespace
}  // namespace calla::cuda
