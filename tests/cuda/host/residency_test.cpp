#include "cuda/host/residency.h"

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/backend.h"

namespace calla::cuda {
namespace {

/// The device and the host of a test: how much there is of each, and what was moved.
struct Memory {
  std::size_t device_room = 1000;
  std::size_t host_room = 1000;
  std::string moves = {};  // "a>" went to the host, "<a" came back
};

class FakeBlock final : public Block {
 public:
  FakeBlock(Residency& residency, Memory& memory, char name, std::size_t bytes)
      : Block(residency, bytes), memory_(memory), name_(name) {
    memory_.device_room -= bytes;
  }
  ~FakeBlock() override { (on_device() ? memory_.device_room : memory_.host_room) += bytes(); }
  FakeBlock(const FakeBlock&) = delete;
  FakeBlock& operator=(const FakeBlock&) = delete;
  FakeBlock(FakeBlock&&) = delete;
  FakeBlock& operator=(FakeBlock&&) = delete;

 private:
  bool move_out() override {
    if (memory_.host_room < bytes()) return false;
    memory_.host_room -= bytes();
    memory_.device_room += bytes();
    memory_.moves += {name_, '>'};
    return true;
  }
  void move_in() override {
    if (memory_.device_room < bytes()) throw OutOfMemory("the fake", "has no room");
    memory_.device_room -= bytes();
    memory_.host_room += bytes();
    memory_.moves += {'<', name_};
  }

  Memory& memory_;
  char name_;
};

class ResidencyTest : public testing::Test {
 protected:
  std::unique_ptr<FakeBlock> block(char name, std::size_t bytes = 10) {
    return std::make_unique<FakeBlock>(residency_, memory_, name, bytes);
  }
  /// What has moved since the last call.
  std::string moved() { return std::exchange(memory_.moves, {}); }

  Memory memory_;
  Residency residency_{30};
};

TEST_F(ResidencyTest, WhatWasUsedLeastRecentlyMovesOut) {
  const auto a = block('a');
  const auto b = block('b');
  const auto c = block('c');
  residency_.settle();
  EXPECT_EQ(moved(), "") << "as much as the budget";
  residency_.touch(*a);
  const auto d = block('d');
  EXPECT_EQ(moved(), "") << "not by itself";
  residency_.settle();
  EXPECT_EQ(moved(), "b>");
  EXPECT_FALSE(b->on_device());
  EXPECT_EQ(residency_.idle_bytes(), 30U);
  EXPECT_EQ(residency_.moved_bytes(), 10U);
}

TEST_F(ResidencyTest, WhatASlotNeedsStaysAndIsNoPartOfTheBudget) {
  const auto a = block('a');
  residency_.hold(*a);
  residency_.hold(*a);  // another slot
  const auto b = block('b', 30);
  residency_.settle();
  EXPECT_EQ(moved(), "");
  residency_.release(*a);
  residency_.settle();
  EXPECT_EQ(moved(), "") << "one slot still needs it";
  residency_.release(*a);
  residency_.settle();
  EXPECT_EQ(moved(), "b>") << "what a slot has just let go was used last";
}

TEST_F(ResidencyTest, WhatIsNeededAgainComesBack) {
  const auto a = block('a');
  const auto b = block('b', 30);
  residency_.settle();
  EXPECT_EQ(moved(), "a>");
  residency_.hold(*a);
  EXPECT_EQ(moved(), "<a");
  EXPECT_TRUE(a->on_device());
  EXPECT_EQ(residency_.moved_bytes(), 0U);
  residency_.touch(*a);  // which changes nothing
  residency_.settle();
  EXPECT_EQ(moved(), "");
  residency_.release(*a);
  residency_.settle();
  EXPECT_EQ(moved(), "b>");
}

TEST_F(ResidencyTest, WithoutRoomOnTheHostEverythingStays) {
  memory_.host_room = 15;
  const auto a = block('a');
  const auto b = block('b');
  const auto c = block('c', 30);
  residency_.settle();
  EXPECT_EQ(moved(), "a>") << "and there is no room for b";
  EXPECT_EQ(residency_.idle_bytes(), 40U);
  memory_.host_room = 100;
  residency_.settle();
  EXPECT_EQ(moved(), "b>") << "the next time there is";
}

TEST_F(ResidencyTest, WhenSomethingDoesNotComeBackNothingHasChanged) {
  const auto a = block('a');
  const auto b = block('b', 30);
  residency_.settle();
  memory_.device_room = 5;
  EXPECT_THROW(residency_.hold(*a), OutOfMemory);
  EXPECT_FALSE(a->on_device());
  EXPECT_EQ(residency_.moved_bytes(), 10U);
  EXPECT_EQ(residency_.idle_bytes(), 30U);
  memory_.device_room = 10;
  residency_.hold(*a);
  EXPECT_TRUE(a->on_device());
  residency_.release(*a);
}

TEST_F(ResidencyTest, MakesRoomBelowTheBudget) {
  const auto a = block('a');
  const auto b = block('b');
  const auto c = block('c');
  residency_.hold(*b);
  EXPECT_TRUE(residency_.make_room(15));
  EXPECT_EQ(moved(), "a>c>");
  EXPECT_FALSE(residency_.make_room(1)) << "the slot's own does not move";
  residency_.release(*b);
}

TEST_F(ResidencyTest, AMomentsWorkAtOnce) {
  Residency none(0);
  std::vector<std::unique_ptr<FakeBlock>> blocks;
  for (int i = 0; i < 50; ++i) blocks.push_back(std::make_unique<FakeBlock>(none, memory_, 'x', 1));
  none.settle();
  EXPECT_EQ(none.idle_bytes(), 18U) << "32 of them";
  none.settle();
  EXPECT_EQ(none.idle_bytes(), 0U);
}

TEST_F(ResidencyTest, CountsWhatIsThereWhateverComesAndGoes) {
  std::mt19937 random(11);
  struct Entry {
    std::unique_ptr<FakeBlock> block;
    int holds = 0;
  };
  std::vector<Entry> entries;
  for (int step = 0; step < 5000; ++step) {
    const auto pick = [&]() -> Entry& { return entries[random() % entries.size()]; };
    switch (entries.empty() ? 0 : random() % 6) {
      case 0:
        if (entries.size() < 20) entries.push_back({block('x', 1 + random() % 20)});
        break;
      case 1: {
        Entry& entry = pick();
        residency_.hold(*entry.block);
        ++entry.holds;
        break;
      }
      case 2:
        if (Entry& entry = pick(); entry.holds > 0) {
          residency_.release(*entry.block);
          --entry.holds;
        }
        break;
      case 3:
        residency_.touch(*pick().block);
        break;
      case 4:
        std::erase_if(entries, [&, gone = random() % entries.size(), i = std::size_t{0}](
                                   const Entry& e) mutable { return i++ == gone && e.holds == 0; });
        break;
      default:
        residency_.settle();
        EXPECT_LE(residency_.idle_bytes(), 30U);
    }
    std::uint64_t idle = 0;
    std::uint64_t out = 0;
    for (const Entry& entry : entries) {
      EXPECT_TRUE(entry.block->on_device() || entry.holds == 0);
      if (!entry.block->on_device()) out += entry.block->bytes();
      if (entry.block->on_device() && entry.holds == 0) idle += entry.block->bytes();
    }
    ASSERT_EQ(residency_.idle_bytes(), idle);
    ASSERT_EQ(residency_.moved_bytes(), out);
  }
  for (Entry& entry : entries) {
    for (; entry.holds > 0; --entry.holds) residency_.release(*entry.block);
  }
}

}  // namespace
}  // namespace calla::cuda
