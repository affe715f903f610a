// The fast CPU backend behind the engine: what is cached changes no bit of an answer.
#include <thread>

#include <gtest/gtest.h>

#include "cpu/backend.h"
#include "engine/engine.h"
#include "requests.h"
#include "support/demo.h"
#include "support/support.h"

namespace calla {
namespace {

using test::joined;
using test::Outcome;
using test::run;

constexpr std::uint64_t pool = std::uint64_t{256} << 20U;

/// Tokens of no meaning, the same ones for the same seed.
std::vector<Token> text(int length, std::uint32_t seed) {
  std::vector<Token> tokens;
  for (int i = 0; i < length; ++i)
    tokens.push_back(static_cast<Token>((static_cast<std::uint32_t>(i) + seed * 7919U) * 2654435761U % 2400));
  return tokens;
}

GenerationRequest greedy(std::vector<Token> prompt, std::vector<int> boundaries = {}, int max_tokens = 10) {
  GenerationRequest request = test::request(std::move(prompt), max_tokens);
  request.boundaries = std::move(boundaries);
  request.sampling.temperature = 0;
  request.sampling.top_logprobs = 0;
  return request;
}

std::unique_ptr<Engine> engine(EngineOptions options) {
  return std::make_unique<Engine>(cpu::make_backend(demo, test::demo_weights(), 2, 1400, 2, {}),
                                  std::move(options));
}

class CachedAnswersTest : public testing::Test {
 protected:
  /// Runs a request where nothing is ever cached, and checks that `outcome` is the same to the bit.
  void expect_as_cold(const GenerationRequest& request, const Outcome& outcome) {
    const Outcome cold = run(*cold_, request);
    EXPECT_EQ(outcome.tokens, cold.tokens);
    EXPECT_EQ(outcome.logprobs, cold.logprobs);
    EXPECT_EQ(cold.finished.cached_tokens, 0);
  }
  /// Runs it with the cache, where so many tokens must be found.
  void check(Engine& warm, const GenerationRequest& request, int cached) {
    const Outcome outcome = run(warm, request);
    EXPECT_EQ(outcome.finished.cached_tokens, cached) << outcome.finished.cache_note;
    expect_as_cold(request, outcome);
  }

  std::unique_ptr<Engine> cold_ = engine({});
};

TEST_F(CachedAnswersTest, RepeatedEditedBranchedAndContinued) {
  const auto warm = engine({.cache_memory = pool});
  const std::vector<Token> first = text(203, 1);
  check(*warm, greedy(first, {70, 150, 198}), 0);
  check(*warm, greedy(first, {70, 150, 198}), 176);
  check(*warm, greedy(first, {}), 176);
  const std::vector<Token> edited = joined({std::vector(first.begin(), first.begin() + 150), text(61, 2)});
  check(*warm, greedy(edited, {70, 150, 206}), 144);
  const std::vector<Token> longer = joined({first, text(9, 3)});
  check(*warm, greedy(longer, {70, 150, 198, 210}), 176);
  // Over a block of the KV cache and a chunk of prefill.
  const std::vector<Token> document = joined({longer, text(700, 4)});
  check(*warm, greedy(document, {70, 150, 198, 210, 900}), 192);
  check(*warm, greedy(joined({document, text(30, 5)}), {70, 150, 198, 210, 930}), 896);
}

TEST_F(CachedAnswersTest, TheNextTurnGoesOnFromTheReply) {
  const auto warm = engine({.cache_memory = pool});
  GenerationRequest first = greedy(text(100, 6), {40}, 60);
  first.reply_continues = true;
  const Outcome outcome = run(*warm, first);
  ASSERT_EQ(outcome.tokens.size(), 60U);
  while (warm->stats().cache_entries < 3) std::this_thread::yield();
  const std::vector<Token> next = joined({first.prompt, outcome.tokens, text(40, 7)});
  check(*warm, greedy(next, {40, 95, 160}), 160);
}

TEST_F(CachedAnswersTest, ReadInShortPiecesBesideAnotherAnswer) {
  const auto warm = engine({.cache_memory = pool});
  auto other = warm->start(greedy(text(50, 8), {}, 1300));
  other->next();
  other->next();
  const std::vector<Token> prompt = text(330, 9);
  check(*warm, greedy(prompt, {200}), 0);
  check(*warm, greedy(joined({prompt, text(50, 10)}), {200, 330}), 304);
}

TEST_F(CachedAnswersTest, AfterARestart) {
  const test::TemporaryFolder folder;
  const EngineOptions options{
      .cache_memory = pool, .cache_dir = folder.path(), .cache_disk = pool, .model_id = "demo"};
  const std::vector<Token> prompt = text(600, 11);
  check(*engine(options), greedy(prompt, {300}), 0);
  const auto warm = engine(options);
  check(*warm, greedy(joined({prompt, text(40, 12)}), {300, 600}), 576);
  check(*warm, greedy(joined({std::vector(prompt.begin(), prompt.begin() + 300), text(40, 13)}), {300}), 288);
}

TEST_F(CachedAnswersTest, WhenThePoolIsTooSmallForAll) {
  // Room for about three snapshots of the demonstration model.
  const auto warm = engine({.cache_memory = std::uint64_t{14} << 20U});
  int cached = 0;
  for (int round = 0; round < 8; ++round) {
    const auto request =
        greedy(joined({text(90, 20), text(60, 21 + static_cast<std::uint32_t>(round) % 3)}), {90});
    const Outcome outcome = run(*warm, request);
    expect_as_cold(request, outcome);
    cached += outcome.finished.cached_tokens;
    EXPECT_LE(warm->stats().cache_bytes, warm->stats().cache_limit);
  }
  EXPECT_GT(cached, 0);
  EXPECT_GT(warm->stats().cache_evictions, 0U);
}

}  // namespace
}  // namespace calla
