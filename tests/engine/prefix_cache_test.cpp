#include "engine/prefix_cache.h"

#include <random>
#include <set>

#include <gtest/gtest.h>

#include "fake_backend.h"
#include "requests.h"

namespace calla {
namespace {

using test::counting;
using test::FakeBackend;
using test::joined;

class PrefixCacheTest : public testing::Test {
 protected:
  std::unique_ptr<Snapshot> snapshot(const std::vector<Token>& tokens) {
    backend_.reset(0);
    for (std::size_t done = 0; done < tokens.size(); done += 4)
      backend_.prefill(0, std::span(tokens).subspan(done, std::min<std::size_t>(4, tokens.size() - done)),
                       true);
    return backend_.snapshot(0);
  }
  void insert(PrefixCache& cache, const std::vector<Token>& tokens) {
    cache.insert(tokens, snapshot(tokens));
  }
  /// A cache with room for so many snapshots of 40 tokens that share nothing.
  PrefixCache cache_for(int snapshots) {
    PrefixCache one(1 << 30);
    insert(one, counting(0, 40));
    return PrefixCache(one.bytes() * static_cast<std::uint64_t>(snapshots));
  }

  FakeBackend backend_{1, 100'000, std::make_shared<FakeBackend::Record>()};
};

TEST_F(PrefixCacheTest, FindsTheLongestPrefixOfAPrompt) {
  PrefixCache cache(1 << 20);
  insert(cache, counting(0, 8));
  insert(cache, counting(0, 24));
  insert(cache, counting(500, 16));
  EXPECT_EQ(cache.find(counting(0, 100), 98).position, 24);
  EXPECT_EQ(cache.find(counting(0, 100), 20).position, 8) << "not beyond the last cut";
  EXPECT_EQ(cache.find(joined({counting(0, 23), {7777, 7778}}), 24).position, 8) << "one token differs";
  EXPECT_EQ(cache.find(counting(500, 30), 28).position, 16);
  EXPECT_EQ(cache.find(counting(501, 30), 28).position, 0);
  EXPECT_EQ(cache.exactly(counting(0, 24))->position(), 24);
  EXPECT_EQ(cache.exactly(counting(0, 23)), nullptr);
}

TEST_F(PrefixCacheTest, SaysWhyNotMore) {
  PrefixCache cache = cache_for(2);
  EXPECT_EQ(cache.find(counting(0, 60), 58).note, "nothing cached begins like it");
  insert(cache, counting(0, 40));
  PrefixCache::Match match = cache.find(joined({counting(0, 30), counting(900, 30)}), 58);
  EXPECT_EQ(match.note, "first difference at token 30 of a cached prompt of 40");
  EXPECT_EQ(match.miss, CacheMiss::differs);
  EXPECT_EQ(cache.find(counting(0, 60), 58).note, "") << "all that was cached of it was used";

  insert(cache, counting(1000, 40));
  insert(cache, counting(2000, 40));
  insert(cache, counting(3000, 40));
  match = cache.find(counting(1000, 60), 58);
  EXPECT_EQ(match.miss, CacheMiss::evicted);
  EXPECT_EQ(match.note, "the state after 40 tokens had to make room");
}

TEST_F(PrefixCacheTest, CountsSharedMemoryOnce) {
  PrefixCache cache(1 << 20);
  const std::vector<Token> tokens = counting(0, 64);
  backend_.reset(0);
  std::set<const void*> blocks;
  std::vector<std::unique_ptr<Snapshot>> snapshots;
  for (std::size_t done = 0; done < tokens.size(); done += 4) {
    backend_.prefill(0, std::span(tokens).subspan(done, 4), true);
    if (done % 16 == 12) snapshots.push_back(backend_.snapshot(0));
  }
  std::uint64_t sum = 0;
  for (auto& taken : snapshots) {
    sum += taken->bytes();
    const auto length = static_cast<std::size_t>(taken->position());
    cache.insert(std::span(tokens).first(length), std::move(taken));
  }
  ASSERT_EQ(cache.entries(), 4U);
  // Four states and eight blocks; counted fully it would be twenty blocks.
  constexpr std::uint64_t held = 4 * FakeBackend::state_bytes + 8 * FakeBackend::block_bytes;
  EXPECT_EQ(sum, held + 12 * FakeBackend::block_bytes);
  EXPECT_GE(cache.bytes(), held);
  EXPECT_LT(cache.bytes(), held + 12 * FakeBackend::block_bytes + 4 * 64);
}

TEST_F(PrefixCacheTest, StaysBelowItsLimitWhateverComes) {
  PrefixCache cache = cache_for(5);
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    const Token first = static_cast<Token>(random() % 6) * 1000;
    const std::vector<Token> tokens = counting(first, 8 + static_cast<int>(random() % 20) * 8);
    cache.find(tokens, static_cast<int>(tokens.size()) - 2);
    insert(cache, tokens);
    ASSERT_LE(cache.bytes(), cache.limit());
  }
  EXPECT_GT(cache.evictions(), 50U);
  EXPECT_GT(cache.entries(), 1U);
}

TEST_F(PrefixCacheTest, WhatIsLargerThanTheCacheIsNotKept) {
  PrefixCache cache(500);
  insert(cache, counting(0, 40));
  EXPECT_EQ(cache.entries(), 0U);
  EXPECT_EQ(cache.bytes(), 0U);
}

TEST_F(PrefixCacheTest, TheOneNotUsedForLongGoes) {
  PrefixCache cache = cache_for(3);
  for (const Token first : {1000, 2000, 3000}) {
    cache.find(counting(first, 60), 58);
    insert(cache, counting(first, 40));
  }
  cache.find(counting(1000, 60), 58);  // the oldest is used again
  insert(cache, counting(4000, 40));
  EXPECT_EQ(cache.longest(counting(2000, 60), 58), 0);
  EXPECT_EQ(cache.longest(counting(1000, 60), 58), 40);
  EXPECT_EQ(cache.longest(counting(3000, 60), 58), 40);
}

TEST_F(PrefixCacheTest, TheOneThatSavesLittleGoes) {
  PrefixCache cache = cache_for(3);
  insert(cache, counting(1000, 40));
  insert(cache, counting(2000, 8));
  insert(cache, counting(3000, 40));
  insert(cache, counting(4000, 40));
  EXPECT_EQ(cache.longest(counting(2000, 60), 58), 0) << "8 tokens are soon read again";
  EXPECT_EQ(cache.entries(), 3U);
}

TEST_F(PrefixCacheTest, AnEarlierTurnGoesBeforeAnotherConversation) {
  // A conversation; three turns of another one, each of which goes on from the one before; and a third one.
  const auto fill = [&](PrefixCache& cache) {
    cache.find(counting(5000, 60), 58);
    insert(cache, counting(5000, 40));
    FakeBackend backend(1, 1000, std::make_shared<FakeBackend::Record>());
    for (const int length : {40, 80, 120}) {
      const std::vector<Token> turn = counting(1000, length);
      cache.find(turn, length - 2);
      for (int done = length - 40; done < length; done += 4)
        backend.prefill(0, std::span(turn).subspan(static_cast<std::size_t>(done), 4), true);
      cache.insert(turn, backend.snapshot(0));
    }
    insert(cache, counting(6000, 40));
  };
  PrefixCache all(1 << 20);
  fill(all);
  ASSERT_EQ(all.entries(), 5U);
  PrefixCache cache(all.bytes() - 1);
  fill(cache);
  EXPECT_EQ(cache.entries(), 4U);
  EXPECT_EQ(cache.exactly(counting(1000, 40)), nullptr) << "the turn that was left behind first";
  EXPECT_EQ(cache.longest(counting(5000, 60), 58), 40);
}

TEST_F(PrefixCacheTest, WhatManyConversationsBeginWithStays) {
  PrefixCache cache = cache_for(6);
  const std::vector<Token> system = counting(0, 40);
  insert(cache, system);
  for (Token first = 1000; first < 20'000; first += 1000) {
    const std::vector<Token> conversation = joined({system, counting(first, 16)});
    EXPECT_EQ(cache.find(conversation, 54).position, 40) << first;
    insert(cache, conversation);
  }
  EXPECT_GT(cache.evictions(), 5U);
}

TEST_F(PrefixCacheTest, WhatIsHeldElsewhereStays) {
  PrefixCache cache = cache_for(2);
  insert(cache, counting(1000, 40));
  const std::shared_ptr<const Snapshot> held = cache.exactly(counting(1000, 40));
  for (const Token first : {2000, 3000, 4000}) {
    cache.find(counting(first, 60), 58);
    insert(cache, counting(first, 40));
  }
  EXPECT_EQ(cache.exactly(counting(1000, 40)), held) << "its memory would not have come back";
  EXPECT_LE(cache.bytes(), cache.limit());
}

}  // namespace
}  // namespace calla
