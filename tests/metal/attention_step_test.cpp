#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "metal/attention_cache.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/mixer_grids.h"
#include "metal/mixer_support.h"
#include "model/shape.h"

namespace calla::metal {
namespace {

using calla_kernels::AttentionArguments;
using calla_kernels::no_slot;
using calla_kernels::page_positions;
using calla_kernels::queries_per_group;
using calla_kernels::single_pass;
using calla_kernels::SlotState;
using calla_kernels::split_count;

/// Slots on the device, and the kernels' passes over them.
class Slots {
 public:
  Slots(Gpu& gpu, const Shape& shape, std::size_t slots, std::size_t context)
      : gpu_(gpu), cache_(gpu, shape, slots, context), slots_(gpu.upload(std::vector<SlotState>(slots))) {}

  const AttentionCache& cache() const { return cache_; }
  SlotState& state(std::size_t slot) const { return slots_->as<SlotState>()[slot]; }

  /// Puts a slot at `position`, with random keys and values before it.
  void fill(std::size_t slot, unsigned position) const {
    state(slot).position = position;
    cache_.fill(slot, position);
  }

  std::vector<float> step(std::span<const unsigned> rows, const std::vector<float>& projected) const {
    const auto inputs = gpu_.upload(projected);
    const auto mixed = gpu_.room<float>(rows.size() * cache_.e.mixed);
    gpu_.run({{attention("attention_step", inputs, {mixed}, arguments(rows, 1), rows.size())}});
    return values_of<float>(mixed);
  }

  /// The same through attention_split and attention_combine, with room for `splits`.
  std::vector<float> split_step(std::span<const unsigned> rows, const std::vector<float>& projected,
                                unsigned splits) const {
    const auto inputs = gpu_.upload(projected);
    const auto partial = gpu_.room<float>(rows.size() * cache_.e.mixed * splits);
    const auto stats = gpu_.room<float>(rows.size() * cache_.e.heads * splits * 2);
    const auto mixed = gpu_.room<float>(rows.size() * cache_.e.mixed);
    const AttentionArguments given = arguments(rows, splits);
    const Gpu::Launch combine{
        "attention_combine",
        calla_kernels::attention_combine_threads,
        {inputs, partial, stats, slots_, mixed, constants(given)},
        {static_cast<std::uint32_t>(cache_.e.heads), static_cast<std::uint32_t>(rows.size()), 1}};
    gpu_.run({{attention("attention_split", inputs, {partial, stats}, given, rows.size())}, {combine}});
    return values_of<float>(mixed);
  }

  /// Compares a slot's result, and the newest row of its cache, with double. The newest key and value are
  /// taken as they are once they have been found good: another rounding to bfloat16 would be seen in the
  /// result.
  void check(std::size_t slot, std::span<const float> projected, std::span<const float> mixed,
             double tolerance = 2e-6) const {
    const std::size_t position = state(slot).position;
    cache_.expect_appended(slot, position, projected);
    // Values are of about one, and so are scores, in float32 the sum of 256 products: weights and results are
    // known to a few units of the last place, 6e-8.
    EXPECT_LT(cache_.error(slot, position, projected, mixed), tolerance) << "at position " << position;
  }

 private:
  AttentionArguments arguments(std::span<const unsigned> rows, unsigned splits) const {
    AttentionArguments result{.slots = {no_slot, no_slot, no_slot, no_slot},
                              .layer = AttentionCache::layer,
                              .max_pages = static_cast<unsigned>(cache_.max_pages),
                              .pages_per_slab = static_cast<unsigned>(cache_.pages_per_slab),
                              .page_stride = static_cast<unsigned>(cache_.page_stride),
                              .splits = splits};
    std::ranges::copy(rows, result.slots);
    return result;
  }
  Gpu::Launch attention(std::string_view kernel, const View& inputs, const std::vector<View>& results,
                        const AttentionArguments& given, std::size_t rows) const {
    std::vector<Argument> bound{inputs, cache_.q_norm, cache_.k_norm, cache_.rope, slots_, cache_.page_table};
    bound.insert(bound.end(), cache_.slabs.begin(), cache_.slabs.end());
    bound.insert(bound.end(), results.begin(), results.end());
    bound.emplace_back(constants(given));
    return {kernel,
            calla_kernels::attention_step_threads,
            bound,
            {given.splits, static_cast<std::uint32_t>(cache_.e.heads) / queries_per_group,
             static_cast<std::uint32_t>(rows)}};
  }

  Gpu& gpu_;
  AttentionCache cache_;
  std::unique_ptr<Buffer> slots_;
};

class AttentionStep : public testing::TestWithParam<Shape> {
 protected:
  std::vector<float> inputs(std::size_t rows, unsigned seed) const {
    return normal_values(rows * e.projected, 0, 1, seed);
  }

  AttentionExtents e{GetParam()};
  Gpu gpu{GetParam()};
};

// In one pass, and through a split that has all positions, with the same bits.
TEST_P(AttentionStep, TakesAllPositionsAtOnce) {
  for (const unsigned position : {0U, 1U, 2U, 3U, 4U, 7U, 8U, 55U, 56U, 63U, 64U, 65U, 128U, 254U, 255U}) {
    const std::vector<float> projected = inputs(1, 10 + position);
    const Slots slots(gpu, GetParam(), 2, single_pass);
    slots.fill(1, position);
    const std::vector<float> mixed = slots.step({{1}}, projected);
    slots.check(1, projected, mixed);
    ASSERT_EQ(split_count(position + 1), 1U);
    EXPECT_TRUE(same_bits<float>(mixed, slots.split_step({{1}}, projected, 1))) << position;
    EXPECT_TRUE(same_bits<float>(mixed, slots.split_step({{1}}, projected, 3))) << position;
  }
}

// Splits of 64 positions.
TEST_P(AttentionStep, TakesPositionsInSplits) {
  for (const unsigned position : {256U, 257U, 319U, 320U, 511U, 512U, 1023U}) {
    const std::vector<float> projected = inputs(1, position);
    const Slots slots(gpu, GetParam(), 1, position + 1);
    slots.fill(0, position);
    slots.check(0, projected, slots.split_step({{0}}, projected, split_count(position + 1)));
  }
}

// As many splits of 64 positions as there may be, splits of 128, and of 256. Without the checkers, for its
// length.
TEST(AttentionStepAtLength, TakesLongerSplits) {
  Gpu gpu(demo, false);
  for (const unsigned position : {8191U, 8192U, 8300U, 16384U}) {
    const std::vector<float> projected = normal_values(AttentionExtents(demo).projected, 0, 1, position);
    const Slots slots(gpu, demo, 1, position + 1);
    slots.fill(0, position);
    slots.check(0, projected, slots.split_step({{0}}, projected, split_count(position + 1)));
  }
}

// Steps in a row, over the end of a page, each reading what those before have appended.
TEST_P(AttentionStep, GoesOnFromWhatItAppended) {
  const Slots slots(gpu, GetParam(), 1, 2 * page_positions);
  for (unsigned position = 0; position < 6; ++position) {
    slots.state(0).position = position;
    const std::vector<float> projected = inputs(1, 40 + position);
    slots.check(0, projected, slots.step({{0}}, projected));
  }
  slots.fill(0, 253);
  for (unsigned position = 253; position < 259; ++position) {
    slots.state(0).position = position;
    const std::vector<float> projected = inputs(1, 50 + position);
    slots.check(0, projected, slots.split_step({{0}}, projected, split_count(position + 1)));
  }
}

// A row's result has the same bits alone and among others, in whatever row, whether theirs are more splits or
// fewer.
TEST_P(AttentionStep, RowsAreApart) {
  const std::array<unsigned, 4> positions{300, 0, 700, 63};
  const std::array<unsigned, 4> order{2, 1, 3, 0};
  const std::vector<float> projected = inputs(4, 60);
  const Slots slots(gpu, GetParam(), 4, 1024);
  for (std::size_t slot = 0; slot < 4; ++slot) slots.fill(slot, positions[slot]);
  const std::vector<float> all = slots.split_step(order, projected, split_count(701));
  for (std::size_t row = 0; row < 4; ++row) {
    const std::span<const float> own = std::span(projected).subspan(row * e.projected, e.projected);
    const std::span<const float> mixed = std::span(all).subspan(row * e.mixed, e.mixed);
    slots.check(order[row], own, mixed);
    const std::vector<float> copy(own.begin(), own.end());
    const unsigned splits = split_count(positions[order[row]] + 1);
    EXPECT_TRUE(same_bits<float>(slots.split_step({&order[row], 1}, copy, splits), mixed)) << row;
    if (splits == 1) {
      EXPECT_TRUE(same_bits<float>(slots.step({&order[row], 1}, copy), mixed)) << row;
    }
  }
}

// A row that has ended and one of no slot give zeros and leave everything as it was; a slot may have ended at
// the end of its context.
TEST_P(AttentionStep, RowsThatAreNotLiveChangeNothing) {
  const Slots slots(gpu, GetParam(), 1, page_positions);
  slots.fill(0, page_positions);
  slots.state(0).ended = 1;
  const std::vector<std::uint16_t> before = slots.cache().contents();
  const std::vector<unsigned> rows{0, no_slot};
  const std::vector<float> projected = inputs(2, 70);
  const auto all_zero = [](const std::vector<float>& values) {
    return std::ranges::all_of(values, [](float x) { return x == 0; });
  };
  EXPECT_TRUE(all_zero(slots.step(rows, projected)));
  EXPECT_TRUE(all_zero(slots.split_step(rows, projected, 2)));
  EXPECT_EQ(slots.cache().contents(), before);
}

// Scores of up to some 200, of which exp alone would overflow.
TEST_P(AttentionStep, TakesLargeScores) {
  constexpr unsigned position = 100;
  const std::vector<float> projected = inputs(1, 80);
  const Slots slots(gpu, GetParam(), 1, page_positions);
  slots.fill(0, position);
  for (std::size_t p = 0; p < position; ++p) {
    for (std::size_t kv_head = 0; kv_head < e.kv_heads; ++kv_head) {
      for (std::uint16_t& x : slots.cache().row(0, p, kv_head, 0))
        x = static_cast<std::uint16_t>(x + (6 << 7));  // times 64
    }
  }
  // The terms of a score are 64 times as large, and so is its error; but few positions have a share.
  slots.check(0, projected, slots.step({{0}}, projected), 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionStep, testing::Values(demo, qwen36_35b),
                         [](const auto& shape) { return shape.param == demo ? "Demo" : "Qwen"; });

}  // namespace
}  // namespace calla::metal
