#include "reference/backend.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "support/demo.h"

namespace calla::reference {
namespace {

const std::vector<Token> prompt{2421, 308, 256, 198, 901, 2422, 198, 2421, 64, 318, 328, 198, 2444, 198};

std::unique_ptr<Backend> backend(int slots = 2) {
  return make_backend(demo, test::demo_weights(), slots, 256);
}

void begin(Backend& backend, int slot, std::span<const Token> tokens,
           SamplingParams params = {.temperature = 0}) {
  backend.reset(slot);
  backend.set_sampling(slot, params, tokens);
  backend.prefill(slot, tokens, true);
}

std::vector<Token> decode(Backend& backend, int slot, int count) {
  std::vector<Token> tokens;
  for (int i = 0; i < count; ++i) {
    backend.submit(std::array{slot});
    for (const SampledToken& token : backend.collect()) tokens.push_back(token.token);
  }
  return tokens;
}

TEST(ReferenceBackend, PositionsCountEveryToken) {
  const auto b = backend();
  begin(*b, 0, prompt);
  EXPECT_EQ(b->position(0), 14);
  EXPECT_EQ(b->position(1), 0);
  decode(*b, 0, 3);
  EXPECT_EQ(b->position(0), 17);
  b->reset(0);
  EXPECT_EQ(b->position(0), 0);
}

TEST(ReferenceBackend, RunsTheFirstLayersAlone) {
  Shape cut = demo;
  cut.layers = 3;
  Weights weights = test::demo_weights();
  weights.layers.resize(3);
  const auto few = make_backend(cut, weights, 1, 256);
  begin(*few, 0, prompt);
  const std::vector<Token> first = decode(*few, 0, 4);
  begin(*few, 0, prompt);
  EXPECT_EQ(decode(*few, 0, 4), first) << "a reset gives the state of as many layers";

  const auto whole = backend();
  begin(*whole, 0, prompt);
  EXPECT_NE(decode(*whole, 0, 4), first);
  EXPECT_LT(few->memory().kv_cache, whole->memory().kv_cache);
  EXPECT_EQ(few->memory().kv_cache, 0U) << "the first three layers have no attention";
}

TEST(ReferenceBackend, PrefillInPiecesGivesTheSameTokens) {
  const auto b = backend();
  begin(*b, 0, prompt);
  b->reset(1);
  b->set_sampling(1, {.temperature = 0}, prompt);
  b->prefill(1, std::span(prompt).first(5), false);
  b->prefill(1, std::span(prompt).subspan(5), true);
  EXPECT_EQ(decode(*b, 0, 12), decode(*b, 1, 12));
}

TEST(ReferenceBackend, SlotsInABatchAreAsAlone) {
  const auto b = backend();
  const std::vector<Token> other{2421, 308, 256, 198, 64, 318};
  begin(*b, 0, prompt);
  const auto first = decode(*b, 0, 10);
  begin(*b, 1, other);
  const auto second = decode(*b, 1, 10);

  begin(*b, 0, prompt);
  begin(*b, 1, other);
  std::array<std::vector<Token>, 2> together;
  // Two steps are on their way at any time.
  b->submit(std::array{0, 1});
  for (int step = 0; step < 10; ++step) {
    if (step < 9) b->submit(std::array{0, 1});
    for (const SampledToken& token : b->collect())
      together.at(static_cast<std::size_t>(token.slot)).push_back(token.token);
  }
  EXPECT_EQ(together[0], first);
  EXPECT_EQ(together[1], second);
}

TEST(ReferenceBackend, AnEndedSlotStaysAsItIs) {
  const auto b = backend();
  begin(*b, 0, prompt);
  const auto tokens = decode(*b, 0, 4);
  begin(*b, 0, prompt, {.temperature = 0, .end_tokens = {tokens[2]}});
  std::vector<SampledToken> sampled;
  for (int i = 0; i < 5; ++i) b->submit(std::array{0});
  for (int i = 0; i < 5; ++i) {
    for (SampledToken& token : b->collect()) sampled.push_back(std::move(token));
  }
  ASSERT_EQ(sampled.size(), 3U);
  EXPECT_TRUE(sampled[2].end);
  EXPECT_EQ(b->position(0), 16) << "the end token is not part of the sequence";
}

TEST(ReferenceBackend, ASnapshotGoesOnInAnySlot) {
  const auto b = backend();
  begin(*b, 0, prompt);
  decode(*b, 0, 3);
  const auto snapshot = b->snapshot(0);
  EXPECT_EQ(snapshot->position(), 17);
  // 6 layers of 8 heads of 128 x 128 and windows of 3 x 2048, KV of 2 layers x 17 positions x 2 x 256, and
  // the logits.
  EXPECT_EQ(snapshot->bytes(), 4U * (6 * (8 * 128 * 128 + 3 * 2048) + 2 * 17 * 2 * 256 + 2560));
  const auto expected = decode(*b, 0, 8);
  b->set_sampling(1, {.temperature = 0}, prompt);
  b->restore(1, *snapshot);
  EXPECT_EQ(decode(*b, 1, 8), expected);
  b->restore(0, *snapshot);
  EXPECT_EQ(decode(*b, 0, 8), expected) << "the snapshot is not used up";
}

TEST(ReferenceBackend, ScoreShowsTheLogitsThatDecodingDrawsFrom) {
  const auto b = backend();
  begin(*b, 0, prompt);
  const auto tokens = decode(*b, 0, 6);
  std::vector<Token> text = prompt;
  text.insert(text.end(), tokens.begin(), tokens.end());
  b->reset(1);
  std::size_t visited = 0;
  b->score(1, text, [&](std::size_t index, std::span<const float> logits) {
    EXPECT_EQ(index, visited++);
    ASSERT_EQ(logits.size(), 2560U);
    if (index + 1 < prompt.size() || index + 1 == text.size()) return;
    EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), text[index + 1]);
  });
  EXPECT_EQ(visited, text.size());
  EXPECT_EQ(b->position(1), static_cast<int>(text.size()));
}

TEST(ReferenceBackend, ThePlanCountsWhatASequenceHolds) {
  const MemoryPlan small = plan(demo, 1000, 1, 100);
  EXPECT_EQ(small.weights, 1000U);
  EXPECT_EQ(small.kv_cache, 100U * 2 * 2 * 256 * 4);
  EXPECT_EQ(small.states, 6U * (8 * 128 * 128 + 3 * 2048) * 4);
  // The figures of the 35B that everyone quotes: 62.8 MiB of recurrent state.
  EXPECT_NEAR(static_cast<double>(plan(qwen36_35b, 0, 1, 1).states) / (1 << 20), 62.8, 0.05);
}

}  // namespace
}  // namespace calla::reference
