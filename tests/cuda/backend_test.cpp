#include "cuda/backend.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "reference/backend.h"
#include "support/backend_contract.h"
#include "support/divergence.h"

namespace calla {
namespace test {
INSTANTIATE_TEST_SUITE_P(Cuda, BackendContract,
                         testing::Values([](const Shape& shape, Weights weights, int slots, int context) {
                           return cuda::make_backend(shape, weights, slots, context, {});
                         }),
                         [](const auto&) { return "Gpu"; });
}  // namespace test

namespace cuda {
namespace {

using test::begin;
using test::decode;
using test::divergence;
using test::long_prompt;
using test::scores;

std::unique_ptr<Backend> make(int slots, int context, const Shape& shape = demo) {
  return make_backend(shape, test::demo_weights(), slots, context, {});
}

TEST(CudaBackend, DecodesAsTheReferenceDoes) {
  const auto fast = make(1, 512);
  const auto truth = reference::make_backend(demo, test::demo_weights(), 1, 512);
  std::vector<Token> tokens = test::prompt();
  const std::vector<Token> more = long_prompt(70);
  tokens.insert(tokens.end(), more.begin(), more.end());
  const auto expected = scores(*truth, 0, tokens);
  const auto actual = scores(*fast, 0, tokens);
  // Activations carry 22 bits, but keys and values are bfloat16.
  for (std::size_t t = 0; t < tokens.size(); ++t) EXPECT_LT(divergence(expected[t], actual[t]), 1e-4) << t;
}

TEST(CudaBackend, ReadsAPromptAsTheReferenceDoes) {
  const auto fast = make(1, 1024);
  const auto truth = reference::make_backend(demo, test::demo_weights(), 1, 1024);
  for (const int length : {1, 2, 7, 14, 63, 64, 65, 130, 300}) {
    std::vector<Token> tokens = test::prompt();
    const std::vector<Token> more = long_prompt(length);
    tokens.insert(tokens.end(), more.begin(), more.end());
    const std::vector<Token> probe{17};
    fast->reset(0);
    fast->prefill(0, tokens, false);
    truth->reset(0);
    truth->prefill(0, tokens, false);
    EXPECT_LT(divergence(scores(*truth, 0, probe)[0], scores(*fast, 0, probe)[0]), 2e-3) << length;
  }
}

TEST(CudaBackend, ABatchGivesTheSameBits) {
  const auto b = make(16, 1200);
  test::expect_batch_as_alone(*b, std::array{2, 3, 5, 8, 16},
                              [&](int slot) { begin(*b, slot, long_prompt(3 + 61 * slot)); });
}

TEST(CudaBackend, EveryRunGivesTheSameBits) {
  const auto b = make(1, 2048);
  std::vector<std::vector<float>> first;
  for (int run = 0; run < 20; ++run) {
    begin(*b, 0, long_prompt(700));
    decode(*b, 0, 30);
    const auto rows = scores(*b, 0, long_prompt(3));
    if (first.empty()) first = rows;
    EXPECT_EQ(rows, first) << run;
  }
}

TEST(CudaBackend, SnapshotsShareFullPages) {
  const auto b = make(2, 2000);
  begin(*b, 0, long_prompt(600));
  const auto first = b->snapshot(0);
  const std::vector<Token> expected = decode(*b, 0, 6);
  const auto second = b->snapshot(0);
  std::size_t shared = 0;
  for (const MemoryPiece& piece : first->memory()) {
    for (const MemoryPiece& other : second->memory()) shared += piece.identity == other.identity ? 1 : 0;
  }
  EXPECT_EQ(shared, 2U) << "pages of 256 positions";
  begin(*b, 0, long_prompt(30));  // the slot is used for something else
  decode(*b, 0, 3);
  b->set_sampling(1, {.temperature = 0}, {});
  b->restore(1, *first);
  EXPECT_EQ(b->position(1), 600);
  EXPECT_EQ(decode(*b, 1, 6), expected);
}

TEST(CudaBackend, FewerLayersRun) {
  Shape cut = demo;
  cut.layers = 4;
  Weights weights = test::demo_weights();
  weights.layers.resize(4);
  const auto b = make_backend(cut, weights, 1, 256, {});
  const auto truth = reference::make_backend(cut, weights, 1, 256);
  const auto expected = scores(*truth, 0, test::prompt());
  const auto actual = scores(*b, 0, test::prompt());
  EXPECT_LT(divergence(expected.back(), actual.back()), 1e-4);
}

TEST(CudaBackend, SaysWhatItCannotDo) { EXPECT_THROW(make(17, 256), Error); }

}  // namespace
}  // namespace cuda
}  // namespace calla
