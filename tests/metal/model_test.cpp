// The demonstration model as a whole, against conversations that other software has computed.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include <gtest/gtest.h>

#include "base/json.h"
#include "metal/backend.h"
#include "metal/test_device.h"
#include "reference/backend.h"
#include "support/demo.h"

namespace calla::metal {
namespace {

constexpr Token end_of_turn = 2422;
constexpr int parts = 6;  // of the file, so that the tests run side by side

/// `loose`: the seed of arithmetic as inexact as Metal's may be.
std::unique_ptr<Backend> make(int slots, std::optional<std::uint64_t> loose = {}) {
  constexpr int context = 1024;
  constexpr int chunk = 256;
  return make_backend(make_test_device({.shape = demo, .checked = false, .loose = loose}), demo,
                      calla::test::demo_weights(), slots, context, {}, chunk);
}

struct Conversation {
  std::vector<Token> prompt;
  std::vector<Token> answer;
};

/// Every sixth conversation of the file.
std::vector<Conversation> golden_part(const std::filesystem::path& folder, int part) {
  const Json golden = read_json_file(folder / "demo/golden.json");
  std::vector<Conversation> conversations;
  for (std::size_t i = static_cast<std::size_t>(part); i < golden.at("generate").size(); i += parts) {
    const Json& one = golden.at("generate").at(i);
    conversations.push_back(
        {one.at("ids").get<std::vector<Token>>(), one.at("greedy_ids").get<std::vector<Token>>()});
  }
  return conversations;
}

/// What a row of logits says of the token that comes.
struct Prediction {
  Token first = 0;
  float gap = 0;  // from the most probable token to the next
  double logprob = 0;
};

Prediction prediction(std::span<const float> logits, Token next) {
  const auto first = std::max_element(logits.begin(), logits.end());
  float second = -1e30F;
  double sum = 0;
  for (auto at = logits.begin(); at != logits.end(); ++at) {
    if (at != first) second = std::max(second, *at);
    sum += std::exp(static_cast<double>(*at - *first));
  }
  return {static_cast<Token>(first - logits.begin()), *first - second,
          logits[static_cast<std::size_t>(next)] - *first - std::log(sum)};
}

/// What is said of a conversation's tokens but for the first ones, which are read as a prompt; the last ones
/// are its answer. Long prompts are read for the most part.
std::vector<Prediction> predictions(Backend& backend, const Conversation& conversation) {
  constexpr std::size_t read_at_least = 4;
  constexpr std::size_t most_scored = 100;  // of a prompt
  std::vector<Token> tokens = conversation.prompt;
  const std::size_t read = std::max(read_at_least, tokens.size() - std::min(tokens.size(), most_scored));
  tokens.insert(tokens.end(), conversation.answer.begin(), conversation.answer.end());
  backend.reset(0);
  backend.prefill(0, std::span(tokens).first(read), false);
  const auto next = std::span(tokens).subspan(read + 1);
  std::vector<Prediction> said;
  backend.score(
      0, std::span(tokens).subspan(read, next.size()),
      [&](std::size_t i, std::span<const float> logits) { said.push_back(prediction(logits, next[i])); });
  return said;
}

/// A part of the file, and how exact the arithmetic is.
using Golden = std::tuple<int, std::optional<std::uint64_t>>;
class GoldenConversations : public testing::TestWithParam<Golden> {};

TEST_P(GoldenConversations, EveryTokenIsTheGoldenOneAndAsProbableAsForTheReference) {
  const auto folder = calla::test::goldens();
  CALLA_REQUIRE(folder, "CALLA_GOLDENS");
  const auto& [part, loose] = GetParam();
  if (loose) CALLA_REQUIRE_LOOSE_ARITHMETIC();
  const auto backend = make(1, loose);
  const auto truth = reference::make_backend(demo, calla::test::demo_weights(), 1, 1024);
  double ours = 0;
  double theirs = 0;
  std::size_t positions = 0;
  for (const Conversation& conversation : golden_part(*folder, part)) {
    const std::vector<Prediction> said = predictions(*backend, conversation);
    const std::vector<Prediction> expected = predictions(*truth, conversation);
    ASSERT_EQ(said.size(), expected.size());
    const std::size_t answer = said.size() - conversation.answer.size();
    for (std::size_t i = 0; i < said.size(); ++i) {
      // Where two tokens are as good as equal, arithmetic that rounds elsewhere may prefer the other one.
      if (expected[i].gap > 0.05F) {
        EXPECT_EQ(said[i].first, i < answer ? expected[i].first : conversation.answer[i - answer]) << i;
      }
      ours += said[i].logprob;
      theirs += expected[i].logprob;
    }
    positions += said.size();
  }
  EXPECT_GT(positions, 120U);  // 1,084 in all
  const auto perplexity = [&](double sum) { return std::exp(-sum / static_cast<double>(positions)); };
  EXPECT_LT(std::abs(perplexity(ours) / perplexity(theirs) - 1), 0.0005);
}

INSTANTIATE_TEST_SUITE_P(Metal, GoldenConversations,
                         testing::Combine(testing::Range(0, parts),
                                          testing::Values(std::optional<std::uint64_t>())));
INSTANTIATE_TEST_SUITE_P(LooseArithmetic, GoldenConversations, testing::Values(Golden(0, 1)));

TEST(GoldenAnswers, ComeOutOfABatch) {
  const auto folder = calla::test::goldens();
  CALLA_REQUIRE(folder, "CALLA_GOLDENS");
  std::vector<Conversation> conversations;
  for (int part = 0; part < parts; ++part) {
    for (Conversation& one : golden_part(*folder, part)) conversations.push_back(std::move(one));
  }
  // The shortest ones.
  constexpr std::size_t most = 5;
  std::sort(conversations.begin(), conversations.end(),
            [](const auto& a, const auto& b) { return a.answer.size() < b.answer.size(); });
  conversations.resize(most);

  const auto backend = make(most);
  std::vector<int> running;
  for (int slot = 0; slot < static_cast<int>(most); ++slot) {
    const std::vector<Token>& prompt = conversations[static_cast<std::size_t>(slot)].prompt;
    backend->set_sampling(slot, {.temperature = 0, .end_tokens = {end_of_turn}}, prompt);
    backend->prefill(slot, prompt, true);
    running.push_back(slot);
  }
  std::map<int, std::vector<Token>> answers;
  backend->submit(running);
  for (std::size_t step = 0; step < conversations.back().answer.size(); ++step) {
    backend->submit(running);  // two are under way at any time
    for (const SampledToken& token : backend->collect()) answers[token.slot].push_back(token.token);
  }
  backend->collect();
  for (std::size_t i = 0; i < most; ++i)
    EXPECT_EQ(answers[static_cast<int>(i)], conversations[i].answer) << "the end token included";
}

}  // namespace
}  // namespace calla::metal
