// The demonstration model as a whole on the simulated device.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/eval_documents.h"
#include "cli/eval_score.h"
#include "metal/backend.h"
#include "metal/test_device.h"
#include "reference/backend.h"
#include "support/demo.h"

namespace calla::metal {
namespace {

constexpr Token end_of_turn = 2422;

std::unique_ptr<Backend> make(int slots, int context) {
  return make_backend(make_test_device({.shape = demo, .checked = false}), demo, test::demo_weights(), slots,
                      context, {}, 256);
}

/// By how much the reference prefers its most probable token to the next one, behind some tokens.
float top_gap(std::span<const Token> tokens) {
  const auto truth = reference::make_backend(demo, test::demo_weights(), 1, 1024);
  truth->prefill(0, tokens.first(tokens.size() - 1), false);
  std::vector<float> logits;
  truth->score(0, tokens.last(1),
               [&](std::size_t, std::span<const float> row) { logits.assign(row.begin(), row.end()); });
  std::partial_sort(logits.begin(), logits.begin() + 2, logits.end(), std::greater<>());
  return logits[0] - logits[1];
}

constexpr int golden_parts = 3;  // of the file, so that the tests run side by side

/// All conversations of a part of the file in one batch.
class GoldenConversations : public testing::TestWithParam<int> {};

TEST_P(GoldenConversations, GiveTheGoldenTokens) {
  const auto folder = test::goldens();
  CALLA_REQUIRE(folder, "CALLA_GOLDENS");
  const Json golden = read_json_file(*folder / "demo/golden.json");
  std::vector<Json> conversations;
  for (std::size_t i = static_cast<std::size_t>(GetParam()); i < golden.at("generate").size();
       i += golden_parts)
    conversations.push_back(golden.at("generate").at(i));
  ASSERT_FALSE(conversations.empty());

  const auto backend = make(static_cast<int>(conversations.size()), 1024);
  std::vector<int> running;
  for (int slot = 0; slot < static_cast<int>(conversations.size()); ++slot) {
    const auto prompt = conversations[static_cast<std::size_t>(slot)].at("ids").get<std::vector<Token>>();
    backend->set_sampling(slot, {.temperature = 0, .end_tokens = {end_of_turn}}, prompt);
    backend->prefill(slot, prompt, true);
    running.push_back(slot);
  }
  std::map<int, std::vector<Token>> answers;
  const auto longest = [](const Json& c) { return c.at("greedy_ids").size(); };
  while (!running.empty()) {
    backend->submit(running);
    for (const SampledToken& token : backend->collect()) {
      std::vector<Token>& answer = answers[token.slot];
      answer.push_back(token.token);
      // The file cuts long answers off.
      if (token.end || answer.size() == longest(conversations[static_cast<std::size_t>(token.slot)]))
        std::erase(running, token.slot);
    }
  }
  for (std::size_t i = 0; i < conversations.size(); ++i) {
    SCOPED_TRACE(conversations[i].at("messages").dump());
    const auto expected = conversations[i].at("greedy_ids").get<std::vector<Token>>();
    const std::vector<Token>& answer = answers[static_cast<int>(i)];
    const auto [wanted, given] =
        std::mismatch(expected.begin(), expected.end(), answer.begin(), answer.end());
    if (wanted == expected.end()) continue;
    // Where two tokens are as good as equal, arithmetic that rounds elsewhere may take the other one.
    auto tokens = conversations[i].at("ids").get<std::vector<Token>>();
    tokens.insert(tokens.end(), expected.begin(), wanted);
    EXPECT_LE(top_gap(tokens), 0.05F) << "token " << wanted - expected.begin();
  }
}

INSTANTIATE_TEST_SUITE_P(Metal, GoldenConversations, testing::Range(0, golden_parts));

/// Of one half of the positions each, so that they run side by side.
class Predictions : public testing::TestWithParam<int> {};

TEST_P(Predictions, AreTheReferences) {
  constexpr std::size_t positions = 520;
  const auto backend = make(1, 512);
  const auto truth = reference::make_backend(demo, test::demo_weights(), 1, 512);
  const Tokenizer tokenizer = Tokenizer::load(test::demo_model());
  const std::vector<cli::Document> all =
      cli::read_documents(test::data("held_out.jsonl"), tokenizer, demo.vocabulary);
  const std::span<const cli::Document> half =
      std::span(all).subspan(static_cast<std::size_t>(GetParam()) * all.size() / 2, all.size() / 2);
  const cli::Evaluation result = cli::evaluate(*backend, truth.get(), half,
                                               {.window = 512, .positions = positions}, [](std::uint64_t) {});
  ASSERT_EQ(result.backend.positions(), positions);
  const cli::Comparison& comparison = result.comparison.value();
  EXPECT_LT(std::abs(result.backend.perplexity() / comparison.reference.perplexity() - 1), 0.0005);
  EXPECT_GE(static_cast<double>(comparison.agreements), 0.995 * positions);
  // All is float32 but keys and values, which are bfloat16.
  EXPECT_LT(comparison.divergence / positions, 1e-5);
}

TEST_P(Predictions, AfterAPromptAreTheReferences) {
  constexpr std::size_t positions = 60;
  const auto backend = make(1, 512);
  const auto truth = reference::make_backend(demo, test::demo_weights(), 1, 512);
  const Tokenizer tokenizer = Tokenizer::load(test::demo_model());
  const std::vector<cli::Document> all =
      cli::read_documents(test::data("held_out.jsonl"), tokenizer, demo.vocabulary);
  const std::span<const cli::Document> half =
      std::span(all).subspan(static_cast<std::size_t>(GetParam()) * all.size() / 2, all.size() / 2);
  const cli::Evaluation result =
      cli::evaluate(*backend, truth.get(), half, {.window = 512, .prefill = 60, .positions = positions},
                    [](std::uint64_t) {});
  const cli::Comparison& comparison = result.comparison.value();
  EXPECT_LT(comparison.divergence / static_cast<double>(result.backend.positions()), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Metal, Predictions, testing::Range(0, 2));

}  // namespace
}  // namespace calla::metal
