#include "cpu/backend.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "reference/backend.h"
#include "support/backend_contract.h"
#include "support/divergence.h"

namespace calla {
namespace {
std::unique_ptr<Backend> make(const Shape& shape, Weights weights, int slots, int context, int threads) {
  return cpu::make_backend(shape, std::move(weights), slots, context, threads, {});
}
test::BackendMaker with_threads(int threads) {
  return [threads](const Shape& shape, Weights weights, int slots, int context) {
    return make(shape, std::move(weights), slots, context, threads);
  };
}
}  // namespace

namespace test {
INSTANTIATE_TEST_SUITE_P(Cpu, BackendContract, testing::Values(with_threads(1), with_threads(3)),
                         [](const auto& made) { return made.index == 0 ? "OneThread" : "ThreeThreads"; });
}  // namespace test

namespace cpu {
namespace {

using test::begin;
using test::decode;
using test::divergence;
using test::long_prompt;
using test::scores;

TEST(CpuBackend, AgreesWithTheReference) {
  const auto fast = make(demo, test::demo_weights(), 1, 256, 2);
  const auto truth = reference::make_backend(demo, test::demo_weights(), 1, 256);
  const auto expected = scores(*truth, 0, test::prompt());
  const auto worst = [&](const std::vector<std::vector<float>>& actual) {
    double largest = 0;
    for (std::size_t t = 0; t < expected.size(); ++t)
      largest = std::max(largest, divergence(expected[t], actual.at(t)));
    return largest;
  };
  EXPECT_LT(worst(scores(*fast, 0, test::prompt())), 1e-7);

  // The prompt read at once, with coarser activations: what comes after it.
  fast->reset(0);
  const std::size_t read = test::prompt().size() - 1;
  fast->prefill(0, std::span(test::prompt()).first(read), false);
  EXPECT_LT(divergence(expected.back(), scores(*fast, 0, std::span(test::prompt()).subspan(read))[0]), 1e-5);
}

TEST(CpuBackend, ScoresAsItDecodes) {
  const auto b = make(demo, test::demo_weights(), 2, 256, 2);
  const std::vector<Token> tokens = long_prompt(40);
  const auto at_once = scores(*b, 0, tokens);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto alone = scores(*b, 1, std::span(tokens).subspan(t, 1));
    // The recurrence takes two tokens at a time where it can, which rounds differently.
    EXPECT_LT(divergence(at_once[t], alone[0]), 1e-3) << t;
  }
}

TEST(CpuBackend, EveryThreadCountGivesTheSameBits) {
  const std::vector<Token> tokens = long_prompt(70);
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 2, 5}) {
    const auto b = make(demo, test::demo_weights(), 1, 256, threads);
    const auto rows = scores(*b, 0, tokens);
    if (first.empty()) first = rows;
    EXPECT_EQ(rows, first) << threads;
  }
}

TEST(CpuBackend, ABatchGivesTheSameBits) {
  const auto b = make(demo, test::demo_weights(), 4, 1200, 2);
  const std::array lengths{3, 513, 40, 700};
  test::expect_batch_as_alone(*b, std::array{4}, [&](int slot) {
    begin(*b, slot, long_prompt(lengths.at(static_cast<std::size_t>(slot))));
  });
}

TEST(CpuBackend, LongPromptsCrossBlocksAndChunks) {
  // 1,100 positions: three blocks of the KV cache, three prefill passes.
  const auto b = make(demo, test::demo_weights(), 2, 2000, 2);
  const std::vector<Token> tokens = long_prompt(1100);
  begin(*b, 0, tokens);
  b->reset(1);
  for (std::size_t done = 0; done < tokens.size(); done += 100)
    b->prefill(1, std::span(tokens).subspan(done, 100), done + 100 == tokens.size());
  const std::vector<Token> probe{17, 18};
  const auto whole = scores(*b, 0, probe);
  const auto pieces = scores(*b, 1, probe);
  EXPECT_LT(divergence(whole[1], pieces[1]), 1e-5);
}

TEST(CpuBackend, SnapshotsShareTheCacheOfAPrefix) {
  const auto b = make(demo, test::demo_weights(), 2, 2000, 2);
  begin(*b, 0, long_prompt(600));
  const auto snapshot = b->snapshot(0);
  const std::vector<Token> expected = decode(*b, 0, 6);
  begin(*b, 0, long_prompt(30));  // the slot is used for something else
  decode(*b, 0, 3);
  b->set_sampling(1, {.temperature = 0}, {});
  b->restore(1, *snapshot);
  EXPECT_EQ(b->position(1), 600);
  EXPECT_EQ(decode(*b, 1, 6), expected);
}

TEST(CpuBackend, SnapshotsOfOneSequenceShareFullBlocks) {
  const auto b = make(demo, test::demo_weights(), 1, 2000, 2);
  const std::vector<Token> tokens = long_prompt(1040);
  const auto pieces_at = [&](std::size_t from, std::size_t to) {
    b->prefill(0, std::span(tokens).subspan(from, to - from), true);
    return b->snapshot(0);
  };
  b->reset(0);
  const auto first = pieces_at(0, 528);
  const auto second = pieces_at(528, 1040);
  ASSERT_EQ(first->memory().size(), 1U + 2) << "states, and blocks of 512 positions";
  ASSERT_EQ(second->memory().size(), 1U + 3);
  EXPECT_EQ(first->memory()[1].identity, second->memory()[1].identity) << "positions 0 to 511";
  EXPECT_NE(first->memory()[2].identity, second->memory()[2].identity) << "copied when it went on";
}

TEST(CpuBackend, DamagedWeightsAreAnErrorAndNotAnAnswer) {
  Weights weights = test::demo_weights();
  weights.layers[2].input_norm[5] = std::nanf("");
  const auto b = make(demo, weights, 1, 256, 2);
  EXPECT_NE(test::message_of([&] { b->prefill(0, test::prompt(), true); }).find("not a number"),
            std::string::npos);
}

TEST(CpuBackend, ThePlanCountsWhatTheBackendTakes) {
  constexpr double gb = 1e9;
  const MemoryPlan small = plan(qwen36_35b, 1, 4096);
  EXPECT_NEAR(static_cast<double>(small.weights) / gb, 19.5, 0.1);
  EXPECT_EQ(small.kv_cache, 4096U * 20480);
  EXPECT_LT(static_cast<double>(small.total()) / gb, 20.5);
  EXPECT_EQ(plan(qwen36_35b, 2, 4096).kv_cache, 2 * small.kv_cache);
  EXPECT_EQ(plan(qwen36_35b, 1, 4097).kv_cache, (4096U + 512) * 20480) << "blocks of 512 positions";
}

}  // namespace
}  // namespace cpu
}  // namespace calla
