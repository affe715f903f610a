#include "metal/sequences.h"

#include <algorithm>
#include <sstream>

#include <gtest/gtest.h>

#include "base/error.h"
#include "metal/recorder.h"

namespace calla::metal {
namespace {

constexpr int context = 1024;

class SequencesTest : public testing::Test {
 protected:
  /// What a kernel would see of a slot's page.
  std::span<std::byte> page(int slot, int index) const {
    const auto ids = sequences_.page_table().buffer->as<std::uint32_t>();
    const std::uint32_t id =
        ids[static_cast<std::size_t>(slot) * sequences_.max_pages() + static_cast<std::size_t>(index)];
    const PagePool& pool = sequences_.pool();
    const std::size_t bytes = pool.page_bytes();
    return pool.slabs()
        .at(id / pool.pages_per_slab())
        .buffer->bytes()
        .subspan(id % pool.pages_per_slab() * bytes, bytes);
  }
  void fill_page(int slot, int index, int value) const {
    std::ranges::fill(page(slot, index), static_cast<std::byte>(value));
  }
  bool page_holds(int slot, int index, int value) const {
    return std::ranges::all_of(page(slot, index),
                               [&](std::byte b) { return b == static_cast<std::byte>(value); });
  }
  std::span<float> state(int slot) const {
    return sequences_.states(0).buffer->as<float>().subspan(
        static_cast<std::size_t>(slot) * sequences_.state_stride(), sequences_.state_stride());
  }
  const calla_kernels::SlotState& slot_state(int slot) const {
    return sequences_.slot_states().buffer->as<calla_kernels::SlotState>()[static_cast<std::size_t>(slot)];
  }

  RecordingDevice device_;
  Sequences sequences_{device_, demo, 2, context};
};

TEST_F(SequencesTest, PagesComeAsASequenceGrows) {
  sequences_.reserve(0, 1);
  sequences_.reserve(1, 257);
  sequences_.reserve(0, 256);
  fill_page(0, 0, 1);
  fill_page(1, 0, 2);
  fill_page(1, 1, 3);
  EXPECT_TRUE(page_holds(0, 0, 1));
  EXPECT_TRUE(page_holds(1, 0, 2));
  sequences_.reserve(0, context);
  EXPECT_TRUE(page_holds(0, 3, 0)) << "new pages are zero";
}

TEST_F(SequencesTest, ASnapshotSharesFullPagesAndKeepsTheRest) {
  sequences_.reserve(0, 300);
  fill_page(0, 0, 1);
  fill_page(0, 1, 2);
  std::ranges::fill(state(0), 0.5F);
  const auto snapshot = sequences_.snapshot(0, 300);
  EXPECT_EQ(snapshot->position(), 300);
  const auto again = sequences_.snapshot(0, 300);
  EXPECT_EQ(snapshot->memory()[1].identity, again->memory()[1].identity) << "the full page";
  EXPECT_NE(snapshot->memory()[2].identity, again->memory()[2].identity) << "the last one";

  fill_page(0, 1, 9);
  std::ranges::fill(state(0), 7.0F);
  sequences_.restore(1, *snapshot);
  EXPECT_TRUE(page_holds(1, 0, 1));
  EXPECT_TRUE(page_holds(1, 1, 2));
  EXPECT_EQ(state(1).back(), 0.5F);
  EXPECT_EQ(slot_state(1).position, 300U);
  fill_page(1, 1, 4);
  sequences_.restore(0, *snapshot);
  EXPECT_TRUE(page_holds(0, 1, 2)) << "what goes on from a snapshot does not change it";
}

TEST_F(SequencesTest, SnapshotsOutliveTheRoomOfTheirPages) {
  sequences_.reserve(0, 512);
  fill_page(0, 0, 1);
  fill_page(0, 1, 2);
  const auto snapshot = sequences_.snapshot(0, 512);
  sequences_.clear(0);
  // All pages that there are.
  sequences_.reserve(0, context);
  sequences_.reserve(1, context);
  for (int i = 0; i < 4; ++i) fill_page(1, i, 8);
  sequences_.restore(0, *snapshot);
  EXPECT_TRUE(page_holds(0, 0, 1));
  EXPECT_TRUE(page_holds(0, 1, 2));
  EXPECT_TRUE(page_holds(1, 0, 8));
}

TEST_F(SequencesTest, AClearedSlotIsEmpty) {
  std::ranges::fill(state(0), 1.0F);
  std::ranges::fill(state(1), 2.0F);
  sequences_.clear(0);
  EXPECT_EQ(state(0).front(), 0.0F);
  EXPECT_EQ(state(0).back(), 0.0F);
  EXPECT_EQ(state(1).front(), 2.0F) << "the other slot";
}

TEST_F(SequencesTest, ASavedSnapshotComesBackOnTopOfItsBase) {
  sequences_.reserve(0, 300);
  fill_page(0, 0, 1);
  fill_page(0, 1, 2);
  const auto base = sequences_.snapshot(0, 256);
  std::ranges::fill(state(0), 3.0F);
  const auto snapshot = sequences_.snapshot(0, 300);
  std::stringstream stream;
  snapshot->save(stream, 256);
  const auto loaded = sequences_.load(stream, base.get());
  EXPECT_EQ(loaded->memory()[1].identity, base->memory()[1].identity);
  sequences_.restore(1, *loaded);
  EXPECT_TRUE(page_holds(1, 0, 1));
  EXPECT_TRUE(page_holds(1, 1, 2));
  EXPECT_EQ(state(1).front(), 3.0F);

  std::stringstream cut(stream.str().substr(0, stream.str().size() - 1));
  EXPECT_THROW(sequences_.load(cut, base.get()), Error);
  std::stringstream other(stream.str());
  EXPECT_THROW(sequences_.load(other, nullptr), Error) << "its base is missing";
}

TEST(Sequences, ACheckpointWithoutAttentionHasPagesAllTheSame) {
  RecordingDevice device;
  Shape shape = demo;
  shape.layers = 2;
  Sequences sequences(device, shape, 1, 512);
  sequences.reserve(0, 512);
  EXPECT_EQ(sequences.snapshot(0, 512)->position(), 512);
}

}  // namespace
}  // namespace calla::metal
