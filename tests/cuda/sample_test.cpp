#include "cuda/sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <gtest/gtest.h>

#include "cuda/sample_support.h"
#include "support/sampling.h"

namespace calla::cuda {
namespace {

using namespace test;

constexpr std::array temperatures{1.0F, 0.6F, 1.7F};

template <Shape S>
void cuts_agree(int draws) {
  SampleRig<S> rig;
  const std::vector<SamplingParams> all = cuts(temperatures);
  for (const auto& [kind, logits] : {std::pair<const char*, Logits>{"peaked", peaked_logits(S.vocabulary, 1)},
                                     {"normal", normal_logits(S.vocabulary, 3.5F, 2)},
                                     {"flat", normal_logits(S.vocabulary, 0.5F, 3)}}) {
    SCOPED_TRACE(kind);
    expect_host_draws(rig, all, logits, draws);
    expect_host_draws(rig, cold_and_hot(), logits, draws);
  }
}
TEST(CudaSample, EveryCutDrawsAsTheHostDoesDemo) { cuts_agree<demo>(20); }
TEST(CudaSample, EveryCutDrawsAsTheHostDoes35b) { cuts_agree<qwen36_35b>(2); }

// Where many logits are equal, the order of ids decides, and lists overflow.
template <Shape S>
void ties_agree(int draws) {
  SampleRig<S> rig;
  const std::vector<SamplingParams> all = cuts(std::span(temperatures).first(1));
  for (const auto& [kind, logits] : {std::pair<const char*, Logits>{"equal", filled(rig, 1.5F)},
                                     {"rounded", rounded(normal_logits(S.vocabulary, 3.5F, 4), 0.5F)},
                                     {"close", normal_logits(S.vocabulary, 1e-4F, 5)}}) {
    SCOPED_TRACE(kind);
    expect_host_draws(rig, all, logits, draws);
  }
}
TEST(CudaSample, TiesAreInTheOrderOfIdsDemo) { ties_agree<demo>(5); }
TEST(CudaSample, TiesAreInTheOrderOfIds35b) { ties_agree<qwen36_35b>(2); }

TEST(CudaSample, GreedyTakesTheLargestAndTheLowestIdAmongEqualsDemo) {
  SampleRig<demo> rig;
  expect_greedy(rig);
}
TEST(CudaSample, GreedyTakesTheLargestAndTheLowestIdAmongEquals35b) {
  SampleRig<qwen36_35b> rig;
  expect_greedy(rig);
}

TEST(CudaSample, PenaltiesAndBiasesOverStepsDemo) {
  SampleRig<demo> rig;
  expect_adjusted_draws(rig, 40, 20);
}
TEST(CudaSample, PenaltiesAndBiasesOverSteps35b) {
  SampleRig<qwen36_35b> rig;
  expect_adjusted_draws(rig, 12, 20);
}

TEST(CudaSample, LogprobsAreTheModelsDemo) {
  SampleRig<demo> rig;
  expect_logprobs(rig, std::array{0, 1, 5, 20});
  expect_logprobs_of_equals(rig);
}
TEST(CudaSample, LogprobsAreTheModels35b) {
  SampleRig<qwen36_35b> rig;
  expect_logprobs(rig, std::array{0, 1, 5, 20});
  expect_logprobs_of_equals(rig);
}

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
  std::vector<SamplingParams> all = cuts(temperatures);
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
