#include "cuda/backend.h"

#include <array>
#include <atomic>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "limited_pool.h"
#include "reference/backend.h"
#include "support/backend_contract.h"
#include "support/divergence.h"

namespace calla {
namespace test {
namespace {
BackendMaker maker(const SnapshotMemory& snapshots) {
  return [snapshots](const Shape& shape, Weights weights, int slots, int context) {
    return cuda::make_backend(shape, weights, slots, context, snapshots, {});
  };
}
}  // namespace
INSTANTIATE_TEST_SUITE_P(Cuda, BackendContract, testing::Values(maker({})),
                         [](const auto&) { return "Gpu"; });
// All snapshots move to the host at once.
INSTANTIATE_TEST_SUITE_P(CudaOnHost, BackendContract, testing::Values(maker({.device = 0, .host = 1 << 28})),
                         [](const auto&) { return "Gpu"; });
}  // namespace test

namespace cuda {
namespace {

using test::begin;
using test::decode;
using test::divergence;
using test::long_prompt;
using test::scores;

std::unique_ptr<Backend> make(int slots, int context, const SnapshotMemory& snapshots = {}) {
  return make_backend(demo, test::demo_weights(), slots, context, snapshots, {});
}

std::string saved(const Snapshot& snapshot) {
  std::stringstream out;
  snapshot.save(out, 0);
  return out.str();
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

TEST(CudaBackend, FewTokensOfAPromptAreAsOneByOne) {
  const auto b = make(2, 1024);
  const std::vector<Token> probe{17, 18};
  // Behind nothing, behind less than a chunk of DeltaNet, over the end of a page of keys.
  for (const int before : {0, 1, 3, 64, 250, 700}) {
    for (const int count : {2, 3, 4, 5, 8, 11, 16}) {
      for (const int slot : {0, 1}) {
        b->reset(slot);
        if (before > 0) b->prefill(slot, long_prompt(before), false);
      }
      const std::vector<Token> all = long_prompt(before + count);
      const std::span<const Token> tokens = std::span(all).last(static_cast<std::size_t>(count));
      b->prefill(0, tokens, true);
      for (std::size_t i = 0; i < tokens.size(); ++i)
        b->prefill(1, tokens.subspan(i, 1), i + 1 == tokens.size());
      EXPECT_EQ(saved(*b->snapshot(0)), saved(*b->snapshot(1))) << count << " behind " << before;
      EXPECT_EQ(b->position(0), before + count);
      EXPECT_EQ(scores(*b, 0, probe), scores(*b, 1, probe)) << count << " behind " << before;
    }
  }
}

TEST(CudaBackend, APromptInPiecesGivesTheSameBits) {
  const auto b = make(2, 2048);
  const auto grain = static_cast<std::size_t>(b->prefill_grain());
  for (const int count : {130, 200, 711, 1040}) {
    const std::vector<Token> all = long_prompt(count);
    begin(*b, 0, all);
    b->reset(1);
    b->set_sampling(1, {.temperature = 0}, {});
    for (std::span<const Token> rest = all; !rest.empty();) {
      // The last piece has a grain at least.
      const auto piece = rest.first(rest.size() < 2 * grain ? rest.size() : grain);
      rest = rest.subspan(piece.size());
      b->prefill(1, piece, rest.empty());
    }
    EXPECT_EQ(saved(*b->snapshot(0)), saved(*b->snapshot(1))) << count;
    EXPECT_EQ(decode(*b, 0, 5), decode(*b, 1, 5)) << count;
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
  const auto b = make_backend(cut, weights, 1, 256, {}, {});
  const auto truth = reference::make_backend(cut, weights, 1, 256);
  const auto expected = scores(*truth, 0, test::prompt());
  const auto actual = scores(*b, 0, test::prompt());
  EXPECT_LT(divergence(expected.back(), actual.back()), 1e-4);
}

TEST(CudaBackend, SnapshotsOnTheHostAreTheSameToTheBit) {
  const auto there = make(2, 4096);
  const auto moved = make(2, 4096, {.device = 0, .host = 1 << 28});
  std::vector<std::unique_ptr<Snapshot>> first;
  std::vector<std::unique_ptr<Snapshot>> second;
  for (const int length : {40, 256, 700, 1500}) {
    begin(*there, 0, long_prompt(length));
    begin(*moved, 0, long_prompt(length));
    first.push_back(there->snapshot(0));
    second.push_back(moved->snapshot(0));
  }
  // Other sequences write over whatever memory was given back.
  begin(*moved, 0, long_prompt(2500));
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(saved(*first[i]), saved(*second[i])) << i;
  const std::vector<Token> probe{17, 18, 19};
  for (std::size_t round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < first.size(); ++i) {
      there->restore(1, *first[i]);
      moved->restore(1, *second[i]);
      EXPECT_EQ(scores(*there, 1, probe), scores(*moved, 1, probe)) << i;
    }
  }
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(saved(*first[i]), saved(*second[i])) << i;
}

TEST(CudaBackend, ASnapshotIsSavedWhileItsMemoryMoves) {
  const auto b = make(2, 4096, {.device = 0, .host = 1 << 28});
  begin(*b, 0, long_prompt(2000));
  const auto snapshot = b->snapshot(0);
  const std::string expected = saved(*snapshot);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::thread saver([&] {
    for (int i = 0; i < 30; ++i) wrong += saved(*snapshot) == expected ? 0 : 1;
    done = true;
  });
  while (!done) {
    b->restore(1, *snapshot);  // its pages come back
    b->reset(1);               // and move again
    b->reset(0);
  }
  saver.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CudaBackend, APromptThatThereIsNoMemoryForChangesNothing) {
  const auto b = make(2, 4096);
  begin(*b, 0, long_prompt(300));
  const std::vector<Token> expected = decode(*b, 0, 12);
  begin(*b, 0, long_prompt(300));
  const test::LimitedPool pool(4 << 20);
  b->reset(1);
  b->set_sampling(1, {.temperature = 0}, {});
  EXPECT_THROW(b->prefill(1, long_prompt(4000), true), OutOfMemory);
  EXPECT_EQ(b->position(1), 0);
  EXPECT_EQ(decode(*b, 0, 12), expected);
  b->prefill(1, long_prompt(300), true);
  EXPECT_EQ(decode(*b, 1, 12), expected) << "as much as there is room for";
}

TEST(CudaBackend, AStepThatThereIsNoMemoryForNamesItsSlot) {
  const auto b = make(2, 2048);
  begin(*b, 0, long_prompt(250));
  const std::vector<Token> expected = decode(*b, 0, 12);
  begin(*b, 0, long_prompt(250));
  begin(*b, 1, long_prompt(30));
  const std::vector<Token> others = decode(*b, 1, 12);
  begin(*b, 1, long_prompt(30));
  std::vector<Token> tokens = decode(*b, 0, 6);  // its page is full
  {
    const test::LimitedPool pool(0);
    try {
      b->submit(std::array{1, 0});
      FAIL() << "there was memory";
    } catch (const OutOfMemory& fault) {
      EXPECT_EQ(fault.slot(), 0);
    }
    EXPECT_EQ(decode(*b, 1, 12), others) << "the other one goes on";
  }
  for (const Token token : decode(*b, 0, 6)) tokens.push_back(token);
  EXPECT_EQ(tokens, expected) << "and so does this one when there is memory";
}

TEST(CudaBackend, SnapshotsMakeRoomForSequences) {
  // As much of the device as they like, and then sequences want it.
  const auto b = make(1, 4096, {.device = std::uint64_t{1} << 40U, .host = 1 << 28});
  const test::LimitedPool pool(12 << 20);
  std::vector<std::unique_ptr<Snapshot>> snapshots;
  std::vector<std::vector<Token>> expected;
  for (int i = 0; i < 6; ++i) {
    begin(*b, 0, long_prompt(600 + 100 * i));
    snapshots.push_back(b->snapshot(0));
    expected.push_back(decode(*b, 0, 5));
  }
  for (std::size_t i = 0; i < snapshots.size(); ++i) {
    b->restore(0, *snapshots[i]);
    EXPECT_EQ(decode(*b, 0, 5), expected[i]) << i;
  }
}

TEST(CudaBackend, SaysWhatItCannotDo) { EXPECT_THROW(make(17, 256), Error); }

}  // namespace
}  // namespace cuda
}  // namespace calla
