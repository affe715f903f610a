#include "cuda/host/pinned_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace calla::cuda {
namespace {

/// Memory that is not pinned, and counts.
class Source {
 public:
  PinnedPool::Source get() {
    return {.pin = [this](std::size_t bytes) -> std::byte* {
              if (pinned_ + bytes > most) return nullptr;
              pinned_ += bytes;
              return static_cast<std::byte*>(std::malloc(bytes));
            },
            .unpin =
                [this](std::byte* memory, std::size_t bytes) {
                  pinned_ -= bytes;
                  std::free(memory);
                }};
  }
  std::size_t pinned() const { return pinned_; }

  std::size_t most = 1 << 20;

 private:
  std::atomic<std::size_t> pinned_{0};
};

PinnedMemory take_at_last(PinnedPool& pool, std::size_t bytes) {
  for (;;) {
    if (auto memory = pool.take(bytes)) return std::move(*memory);
    std::this_thread::yield();
  }
}

TEST(PinnedPool, PinsTheFirstSlabAtOnceAndMoreWhenItIsNeeded) {
  Source source;
  {
    PinnedPool pool(10, 45, 105, source.get());
    EXPECT_EQ(source.pinned(), 40U) << "whole pieces";
    const auto first = pool.take(25);
    ASSERT_TRUE(first);
    const auto second = take_at_last(pool, 25);
    const auto third = take_at_last(pool, 25);
    EXPECT_LE(source.pinned(), 100U);
    EXPECT_FALSE(pool.take(25)) << "beyond the limit";
    EXPECT_TRUE(pool.take(10)) << "a piece is left";
  }
  EXPECT_EQ(source.pinned(), 0U);
}

TEST(PinnedPool, WaitsForWhatIsOnItsWay) {
  Source source;
  PinnedPool pool(10, 10, 60, source.get());
  EXPECT_FALSE(pool.wait_for_more()) << "nobody has asked for more";
  EXPECT_FALSE(pool.take(50));
  while (pool.pinned_bytes() < 50) EXPECT_TRUE(pool.wait_for_more());
  const auto most = pool.take(50);
  EXPECT_TRUE(most);
  while (pool.wait_for_more()) {
  }
  EXPECT_EQ(pool.pinned_bytes(), 60U);
  EXPECT_FALSE(pool.wait_for_more()) << "at the limit";
}

TEST(PinnedPool, WhatGoesBackIsTakenAgain) {
  Source source;
  PinnedPool pool(10, 40, 40, source.get());
  for (int round = 0; round < 100; ++round) {
    const auto a = pool.take(15);
    const auto b = pool.take(20);
    ASSERT_TRUE(a && b);
    EXPECT_FALSE(pool.take(1));
  }
  EXPECT_EQ(pool.pinned_bytes(), 40U);
}

TEST(PinnedPool, VisitsAPartOfItsMemoryStretchByStretch) {
  Source source;
  PinnedPool pool(10, 40, 40, source.get());
  const auto memory = pool.take(35);
  ASSERT_TRUE(memory);
  memory->visit(0, 35, [](std::byte* at, std::size_t count, std::size_t done) {
    for (std::size_t i = 0; i < count; ++i) at[i] = static_cast<std::byte>(done + i);
  });
  for (const std::size_t from : {0U, 3U, 9U, 10U, 17U, 34U}) {
    for (std::size_t bytes = 0; from + bytes <= 35; ++bytes) {
      std::size_t next = 0;
      memory->visit(from, bytes, [&](const std::byte* at, std::size_t count, std::size_t done) {
        EXPECT_EQ(done, next);
        for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(at[i], static_cast<std::byte>(from + done + i));
        next += count;
      });
      EXPECT_EQ(next, bytes);
    }
  }
}

TEST(PinnedPool, MakesDoWithWhatTheSystemGives) {
  Source source;
  source.most = 50;
  PinnedPool pool(10, 40, 1000, source.get());
  const auto first = pool.take(40);
  ASSERT_TRUE(first);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(pool.take(10));
    std::this_thread::yield();
  }
  EXPECT_EQ(pool.pinned_bytes(), 40U);
  Source empty;
  empty.most = 0;
  PinnedPool none(10, 40, 1000, empty.get());
  EXPECT_FALSE(none.take(10));
}

TEST(PinnedPool, WithoutALimitToReachItPinsNothing) {
  Source source;
  PinnedPool pool(10, 40, 9, source.get());
  EXPECT_FALSE(pool.take(1));
  EXPECT_EQ(source.pinned(), 0U);
}

TEST(PinnedPool, NoPieceIsGivenTwice) {
  Source source;
  PinnedPool pool(8, 80, 4096, source.get());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, mark = static_cast<std::byte>(t + 1)] {
      for (int round = 0; round < 500; ++round) {
        const PinnedMemory memory = take_at_last(pool, 50);
        memory.visit(0, 50, [&](std::byte* at, std::size_t count, std::size_t) {
          std::fill_n(at, count, mark);
          std::this_thread::yield();
          for (std::size_t i = 0; i < count; ++i) wrong += at[i] == mark ? 0 : 1;
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace calla::cuda
