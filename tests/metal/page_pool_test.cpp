#include "metal/page_pool.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/error.h"
#include "metal/recorder.h"

namespace calla::metal {
namespace {

constexpr std::size_t page_bytes = 64;

void fill(const PageUse& use, int value) {
  std::ranges::fill(PagePool::bytes(use), static_cast<std::byte>(value));
}

bool holds(const Page& page, int value) {
  bool same = true;
  page.read([&](std::span<const std::byte> bytes) {
    same = std::ranges::all_of(bytes, [&](std::byte b) { return b == static_cast<std::byte>(value); });
  });
  return same;
}

TEST(PagePool, PagesAreZeroAndApart) {
  RecordingDevice device;
  PagePool pool(device, page_bytes, 6);
  EXPECT_EQ(pool.pages_per_slab(), 2U);
  std::vector<PageUse> uses;
  for (int i = 0; i < 6; ++i) {
    uses.push_back(pool.create());
    EXPECT_TRUE(holds(*uses.back().page(), 0));
    fill(uses.back(), i + 1);
  }
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(holds(*uses[static_cast<std::size_t>(i)].page(), i + 1));
    EXPECT_EQ(PagePool::id(uses[static_cast<std::size_t>(i)]), static_cast<unsigned>(i));
  }
}

TEST(PagePool, BuffersComeAsTheyAreNeeded) {
  RecordingDevice device;
  PagePool pool(device, page_bytes, 8);
  std::vector<PageUse> uses;
  uses.push_back(pool.create());
  EXPECT_EQ(pool.slabs()[1].buffer, pool.slabs()[0].buffer) << "one that is not there stands as another";
  uses.push_back(pool.create());
  uses.push_back(pool.create());
  EXPECT_NE(pool.slabs()[1].buffer, pool.slabs()[0].buffer);
}

TEST(PagePool, WhatIsGivenBackIsTakenAgainAndZero) {
  RecordingDevice device;
  PagePool pool(device, page_bytes, 2);
  auto first = std::make_unique<PageUse>(pool.create());
  const PageUse second = pool.create();
  fill(*first, 7);
  const unsigned id = PagePool::id(*first);
  first.reset();
  const PageUse third = pool.create();
  EXPECT_EQ(PagePool::id(third), id);
  EXPECT_TRUE(holds(*third.page(), 0));
}

TEST(PagePool, APageThatNoSlotUsesMakesRoomAndComesBack) {
  RecordingDevice device;
  PagePool pool(device, page_bytes, 2);
  std::shared_ptr<Page> kept;  // as a snapshot does
  {
    const PageUse use = pool.create();
    fill(use, 9);
    kept = use.page();
  }
  auto a = std::make_unique<PageUse>(pool.create());
  auto b = std::make_unique<PageUse>(pool.create());
  EXPECT_TRUE(holds(*kept, 9)) << "it has moved out";
  b.reset();
  const PageUse back = pool.use(kept);
  EXPECT_TRUE(holds(*kept, 9));
  EXPECT_EQ(PagePool::bytes(back).front(), std::byte{9}) << "it is in the buffers again";
  EXPECT_NE(PagePool::id(back), PagePool::id(*a));
}

TEST(PagePool, ACopyIsItsOwn) {
  RecordingDevice device;
  PagePool pool(device, page_bytes, 2);
  const PageUse first = pool.create();
  fill(first, 3);
  const PageUse copy = pool.copy(PagePool::bytes(first));
  fill(first, 4);
  EXPECT_TRUE(holds(*copy.page(), 3));
}

}  // namespace
}  // namespace calla::metal
