#include "metal/backend.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "metal/sequences.h"
#include "metal/test_device.h"
#include "model/snapshot_stream.h"
#include "reference/backend.h"
#include "support/backend_contract.h"
#include "support/divergence.h"

namespace calla {
namespace {
// A prompt's chunk in these tests, where a token takes a tenth of a second.
constexpr int chunk = 32;

std::unique_ptr<Backend> make(int slots, int context, const Shape& shape = demo,
                              Weights weights = test::demo_weights()) {
  return metal::make_backend(metal::make_test_device({.shape = demo, .checked = false}), shape, weights,
                             slots, context, {}, chunk);
}
}  // namespace

namespace test {
INSTANTIATE_TEST_SUITE_P(Metal, BackendContract,
                         testing::Values([](const Shape& shape, Weights weights, int slots, int context) {
                           return make(slots, context, shape, std::move(weights));
                         }),
                         [](const auto&) { return "Simulated"; });
}  // namespace test

namespace metal {
namespace {

using test::begin;
using test::decode;
using test::divergence;
using test::long_prompt;
using test::scores;

std::vector<Token> prompt_and(int more) {
  std::vector<Token> tokens = test::prompt();
  const std::vector<Token> rest = long_prompt(more);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

TEST(MetalBackend, DecodesAsTheReferenceDoes) {
  const auto fast = make(1, 512);
  const auto truth = reference::make_backend(demo, test::demo_weights(), 1, 512);
  const std::vector<Token> tokens = prompt_and(40);
  const auto expected = scores(*truth, 0, tokens);
  const auto actual = scores(*fast, 0, tokens);
  // All is float32 but keys and values, which are bfloat16.
  for (std::size_t t = 0; t < tokens.size(); ++t) EXPECT_LT(divergence(expected[t], actual[t]), 1e-4) << t;
}

TEST(MetalBackend, ReadsAPromptAsTheReferenceDoes) {
  const auto fast = make(1, 512);
  const auto truth = reference::make_backend(demo, test::demo_weights(), 1, 512);
  for (const int more : {-13, 0, 1, 50, 70}) {
    std::vector<Token> tokens = more < 0 ? std::vector<Token>{test::prompt().front()} : prompt_and(more);
    const std::vector<Token> probe{17};
    fast->reset(0);
    fast->prefill(0, tokens, false);
    truth->reset(0);
    truth->prefill(0, tokens, false);
    EXPECT_LT(divergence(scores(*truth, 0, probe)[0], scores(*fast, 0, probe)[0]), 1e-4) << tokens.size();
  }
}

/// The first layers of the demonstration model: of each kind there is one.
struct FewLayers {
  FewLayers() {
    shape.layers = 4;
    weights.layers.resize(4);
  }
  Shape shape = demo;
  Weights weights = test::demo_weights();
};

TEST(MetalBackend, ALongContextIsSplitAndAgrees) {
  const FewLayers few;
  const auto fast = make(1, 512, few.shape, few.weights);
  const auto truth = reference::make_backend(few.shape, few.weights, 1, 512);
  const std::vector<Token> tokens = long_prompt(254);
  fast->prefill(0, tokens, false);
  truth->prefill(0, tokens, false);
  const std::vector<Token> probe{17, 18, 19, 20, 21};  // positions on both sides of the first split
  const auto expected = scores(*truth, 0, probe);
  const auto actual = scores(*fast, 0, probe);
  for (std::size_t t = 0; t < probe.size(); ++t) EXPECT_LT(divergence(expected[t], actual[t]), 1e-4) << t;
}

/// A sequence of zeros at a position that would take long to come to, as a backend has saved it.
std::string saved_zeros(const Shape& shape, int position) {
  std::ostringstream out;
  write_span(out, {0, position});
  const SequenceBytes bytes = sequence_bytes(shape);
  const std::size_t pages = static_cast<std::size_t>(page_count(position)) * bytes.page;
  out << std::string(pages + bytes.states + bytes.windows + bytes.logits + bytes.peaks, '\0');
  return out.str();
}

TEST(MetalBackend, ABatchGivesTheSameBits) {
  const auto b = make(6, 512);
  // The third one crosses what attention takes in one go.
  std::istringstream saved(saved_zeros(demo, 250));
  const auto far = b->load_snapshot(saved, nullptr);
  test::expect_batch_as_alone(*b, std::array{3, 6}, [&](int slot) {
    const std::vector<Token> tokens = long_prompt(3 + slot);
    b->reset(slot);
    b->set_sampling(slot, {.temperature = 0}, tokens);
    if (slot == 2) b->restore(slot, *far);
    b->prefill(slot, tokens, true);
  });
}

TEST(MetalBackend, AnEndedSlotGoesOnFromItsSnapshot) {
  const auto b = make(2, 256);
  begin(*b, 0, test::prompt());
  const std::vector<Token> tokens = decode(*b, 0, 4);
  begin(*b, 0, test::prompt(), {.temperature = 0, .end_tokens = {tokens[2]}});
  for (int i = 0; i < 5; ++i) b->submit(std::array{0});
  for (int i = 0; i < 5; ++i) b->collect();
  EXPECT_EQ(b->position(0), 16);
  const auto snapshot = b->snapshot(0);
  b->set_sampling(1, {.temperature = 0}, {});
  b->restore(1, *snapshot);
  EXPECT_EQ(decode(*b, 1, 2), (std::vector<Token>{tokens[2], tokens[3]}))
      << "steps of an ended slot change nothing";
}

TEST(MetalBackend, EveryOrderOfThreadsGivesTheSameBits) {
  std::vector<std::vector<float>> first;
  for (const std::uint64_t seed : {1, 2, 3}) {
    const auto b = make_backend(make_test_device({.shape = demo, .checked = false, .seed = seed}), demo,
                                test::demo_weights(), 1, 256, {}, chunk);
    begin(*b, 0, long_prompt(40));
    decode(*b, 0, 3);
    const auto rows = scores(*b, 0, long_prompt(2));
    if (first.empty()) first = rows;
    EXPECT_EQ(rows, first) << seed;
  }
}

TEST(MetalBackend, LooseArithmeticMovesLogitsLittle) {
  CALLA_REQUIRE_LOOSE_ARITHMETIC();
  const std::vector<Token> tokens = long_prompt(24);
  const std::vector<Token> probe{17, 18};
  const auto logits = [&](const TestDeviceOptions& options) {
    const auto b = make_backend(make_test_device(options), demo, test::demo_weights(), 1, 256, {}, chunk);
    b->prefill(0, tokens, false);
    return scores(*b, 0, probe);
  };
  const auto exact = logits({.shape = demo, .checked = false});
  const auto loose = logits({.shape = demo, .checked = false, .loose = 1});
  float most = 0;
  double most_divergence = 0;
  for (std::size_t t = 0; t < probe.size(); ++t) {
    for (std::size_t i = 0; i < exact[t].size(); ++i)
      most = std::max(most, std::abs(loose[t][i] - exact[t][i]));
    most_divergence = std::max(most_divergence, divergence(exact[t], loose[t]));
  }
  EXPECT_GT(most, 0);
  EXPECT_LT(most, 1e-3F);
  EXPECT_LT(most_divergence, 1e-6);
  // For docs/metal.md.
  RecordProperty("largest_move_of_a_logit", fmt::format("{:.2g}", most));
  RecordProperty("largest_divergence", fmt::format("{:.2g}", most_divergence));
}

TEST(MetalBackend, TensorUnitsReadAPromptNearlyAsWell) {
  CALLA_REQUIRE_TENSOR_UNITS();
  const auto fast = make_backend(make_test_device({.shape = demo, .checked = false, .tensor_units = true}),
                                 demo, test::demo_weights(), 1, 256, {}, chunk);
  const auto truth = reference::make_backend(demo, test::demo_weights(), 1, 256);
  const std::vector<Token> tokens = prompt_and(60);
  const std::vector<Token> probe{17};
  fast->prefill(0, tokens, false);
  truth->prefill(0, tokens, false);
  // The operands of products are bfloat16, as everywhere in MLX.
  EXPECT_LT(divergence(scores(*truth, 0, probe)[0], scores(*fast, 0, probe)[0]), 2e-2);
}

TEST(MetalBackend, TheSimulatorFindsNothingWrongAndNoBarrierNeedless) {
  auto device = make_test_device({.shape = demo, .checked = true});
  const TestDevice& watched = *device;
  const FewLayers few;
  const auto b = make_backend(std::move(device), few.shape, few.weights, 4, 512, {}, chunk);
  begin(*b, 0, long_prompt(35));
  const auto read = b->snapshot(0);
  for (const int slot : {2, 3}) {
    b->set_sampling(slot, {.temperature = 0}, long_prompt(35));
    b->restore(slot, *read);
  }
  // Attention in splits, and all that sampling has.
  std::istringstream saved(saved_zeros(few.shape, 260));
  b->set_sampling(1,
                  {.temperature = 0.8F,
                   .top_k = 20,
                   .top_p = 0.9F,
                   .repetition_penalty = 1.1F,
                   .seed = 5,
                   .top_logprobs = 3},
                  long_prompt(3));
  b->restore(1, *b->load_snapshot(saved, nullptr));
  b->prefill(1, long_prompt(3), true);
  // A token for each, then passes with attention in one go and in splits, of one row, of three as four, and
  // of four.
  const std::vector<int> all{0, 1, 2, 3};
  b->submit(all);
  for (const std::vector<int>& rows : std::vector<std::vector<int>>{{0}, {1}, {0, 2, 3}, all}) {
    b->submit(rows);
    b->collect();
  }
  b->collect();
  EXPECT_EQ(b->position(0), 39);
  EXPECT_EQ(b->position(1), 266);
  for (const std::string& finding : watched.findings()) ADD_FAILURE() << finding;
  for (const std::string& barrier : watched.needless_barriers()) ADD_FAILURE() << barrier;
}

}  // namespace
}  // namespace metal
}  // namespace calla
