#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "metal/kernels/arguments.h"
#include "metal/kernels/mixer_grids.h"
#include "metal/mixer_support.h"
#include "model/affine.h"
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

constexpr std::size_t head_dim = Shape::attention_head_dim;
constexpr std::size_t pairs = Shape::rotary_dim / 2;

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

/// Extents of a shape, as sizes.
struct Extents {
  explicit Extents(const Shape& shape)
      : heads(size(shape.attention_heads)),
        kv_heads(size(shape.kv_heads)),
        mixed(heads * head_dim),
        projected(2 * mixed + 2 * kv_heads * head_dim) {}

  std::size_t heads;
  std::size_t kv_heads;
  std::size_t mixed;
  std::size_t projected;
};

double rope_angle(std::size_t position, std::size_t pair) {
  return static_cast<double>(position) * std::pow(rope_theta, -static_cast<double>(pair) / pairs);
}

/// The head after RMS norm and RoPE, in double.
std::vector<double> turned(std::span<const float> head, std::span<const float> gain, std::size_t position) {
  double squares = 0;
  for (const float x : head) squares += double{x} * x;
  const double scale = 1 / std::sqrt(squares / head_dim + rms_norm_epsilon);
  std::vector<double> out(head_dim);
  for (std::size_t d = 0; d < head_dim; ++d) out[d] = head[d] * scale * gain[d];
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const double cosine = std::cos(rope_angle(position, pair));
    const double sine = std::sin(rope_angle(position, pair));
    const double low = out[pair];
    const double high = out[pair + pairs];
    out[pair] = low * cosine - high * sine;
    out[pair + pairs] = high * cosine + low * sine;
  }
  return out;
}

/// Slots with a cache of two layers, of which the second is used, in pages that lie all over the slabs.
class Cache {
 public:
  Cache(Gpu& gpu, const Shape& shape, std::size_t slots, std::size_t context)
      : gpu_(gpu),
        e_(shape),
        max_pages_((context + page_positions - 1) / page_positions),
        page_stride_(layers * e_.kv_heads * 2 * page_positions * head_dim),
        pages_per_slab_((slots * max_pages_ + 3) / 4),
        q_norm_(normal_values(head_dim, 1, 0.3F, 1)),
        k_norm_(normal_values(head_dim, 1, 0.3F, 2)),
        slots_(gpu.upload(std::vector<SlotState>(slots))) {
    std::vector<unsigned> table(slots * max_pages_);
    std::iota(table.begin(), table.end(), 0U);
    std::ranges::shuffle(table, std::mt19937(3));
    page_table_ = gpu.upload(table);
    for (auto& slab : slabs_) slab = gpu.room<std::uint16_t>(pages_per_slab_ * page_stride_);
    std::vector<float> rope;
    for (std::size_t position = 0; position < context; ++position) {
      for (std::size_t pair = 0; pair < pairs; ++pair) {
        rope.push_back(static_cast<float>(std::cos(rope_angle(position, pair))));
        rope.push_back(static_cast<float>(std::sin(rope_angle(position, pair))));
      }
    }
    norms_ = {gpu.upload(q_norm_), gpu.upload(k_norm_), gpu.upload(rope)};
  }

  SlotState& slot(std::size_t index) const { return slots_->as<SlotState>()[index]; }

  /// The row of keys (0) or values (1) of a position.
  std::span<std::uint16_t> row(std::size_t slot, std::size_t position, std::size_t kv_head,
                               std::size_t part) const {
    const std::size_t page = page_table_->as<unsigned>()[slot * max_pages_ + position / page_positions];
    const std::size_t block = ((layer * e_.kv_heads + kv_head) * 2 + part) * page_positions;
    return slabs_[page / pages_per_slab_]->as<std::uint16_t>().subspan(
        page % pages_per_slab_ * page_stride_ + (block + position % page_positions) * head_dim, head_dim);
  }

  /// Puts a slot at `position`, with random keys and values before it.
  void fill(std::size_t slot, unsigned position) const {
    this->slot(slot).position = position;
    std::mt19937 random(static_cast<unsigned>(1000 + slot));
    std::normal_distribution<float> normal;
    for (std::size_t p = 0; p < position; ++p) {
      for (std::size_t h = 0; h < 2 * e_.kv_heads; ++h) {
        for (std::uint16_t& x : row(slot, p, h / 2, h % 2))
          x = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
      }
    }
  }

  std::vector<float> step(std::span<const unsigned> rows, const std::vector<float>& projected) const {
    const auto mixed = gpu_.room<float>(rows.size() * e_.mixed);
    gpu_.run("attention_step", calla_kernels::attention_step_threads,
             {gpu_.upload(projected), norms_[0], norms_[1], norms_[2], slots_, page_table_, slabs_[0],
              slabs_[1], slabs_[2], slabs_[3], mixed, constants(arguments(rows, 1))},
             {1, groups(), static_cast<std::uint32_t>(rows.size())});
    return values_of<float>(mixed);
  }

  /// The same through attention_split and attention_combine, with room for `splits`.
  std::vector<float> split_step(std::span<const unsigned> rows, const std::vector<float>& projected,
                                unsigned splits) const {
    const auto inputs = gpu_.upload(projected);
    const auto partial = gpu_.room<float>(rows.size() * e_.mixed * splits);
    const auto stats = gpu_.room<float>(rows.size() * e_.heads * splits * 2);
    const auto mixed = gpu_.room<float>(rows.size() * e_.mixed);
    const AttentionArguments given = arguments(rows, splits);
    const auto count = static_cast<std::uint32_t>(rows.size());
    gpu_.run("attention_split", calla_kernels::attention_step_threads,
             {inputs, norms_[0], norms_[1], norms_[2], slots_, page_table_, slabs_[0], slabs_[1], slabs_[2],
              slabs_[3], partial, stats, constants(given)},
             {splits, groups(), count});
    gpu_.run("attention_combine", calla_kernels::attention_combine_threads,
             {inputs, partial, stats, slots_, mixed, constants(given)},
             {static_cast<std::uint32_t>(e_.heads), count, 1});
    return values_of<float>(mixed);
  }

  /// Compares a result, and the newest row of the cache, with double. The newest key and value are checked
  /// first and then taken as they are: another rounding to bfloat16 would be seen in the result.
  void check(std::size_t slot, std::span<const float> projected, std::span<const float> mixed,
             double tolerance = 2e-6) const {
    const std::size_t position = this->slot(slot).position;
    for (std::size_t kv_head = 0; kv_head < e_.kv_heads; ++kv_head) {
      const auto key_input = projected.subspan(2 * e_.mixed + kv_head * head_dim, head_dim);
      const auto value_input = projected.subspan(2 * e_.mixed + (e_.kv_heads + kv_head) * head_dim, head_dim);
      const std::vector<double> key = turned(key_input, k_norm_, position);
      const auto new_key = row(slot, position, kv_head, 0);
      const auto new_value = row(slot, position, kv_head, 1);
      for (std::size_t d = 0; d < head_dim; ++d) {  // half a unit of the last of 8 bits, and float32's error
        ASSERT_NEAR(bf16_to_float(new_key[d]), key[d], std::abs(key[d]) * 0x1.01p-8 + 1e-6) << d;
        ASSERT_NEAR(bf16_to_float(new_value[d]), value_input[d], std::abs(value_input[d]) * 0x1p-8) << d;
      }
    }

    double worst = 0;
    std::vector<double> weights(position + 1);
    for (std::size_t head = 0; head < e_.heads; ++head) {
      const std::size_t kv_head = head * e_.kv_heads / e_.heads;
      const std::vector<double> q =
          turned(projected.subspan(2 * head * head_dim, head_dim), q_norm_, position);
      double sum = 0;
      for (std::size_t p = 0; p <= position; ++p) {
        const auto key = row(slot, p, kv_head, 0);
        double score = 0;
        for (std::size_t d = 0; d < head_dim; ++d) score += q[d] * bf16_to_float(key[d]);
        weights[p] = std::exp(score / 16);  // of a few units: no overflow
        sum += weights[p];
      }
      std::vector<double> out(head_dim);
      for (std::size_t p = 0; p <= position; ++p) {
        const auto value = row(slot, p, kv_head, 1);
        for (std::size_t d = 0; d < head_dim; ++d) out[d] += weights[p] / sum * bf16_to_float(value[d]);
      }
      for (std::size_t d = 0; d < head_dim; ++d) {
        const double gate = projected[(2 * head + 1) * head_dim + d];
        worst = std::max(worst, known(mixed[head * head_dim + d] - out[d] / (1 + std::exp(-gate))));
      }
    }
    // Values are of about one, and so are scores, in float32 the sum of 256 products: weights and results are
    // known to a few units of the last place, 6e-8.
    EXPECT_LT(worst, tolerance) << "at position " << position;
  }

  /// Everything that a step may change.
  std::vector<std::uint16_t> contents() const {
    std::vector<std::uint16_t> all;
    for (const auto& slab : slabs_)
      all.insert(all.end(), slab->as<std::uint16_t>().begin(), slab->as<std::uint16_t>().end());
    return all;
  }

 private:
  static constexpr std::size_t layers = 2;
  static constexpr std::size_t layer = 1;

  std::uint32_t groups() const { return static_cast<std::uint32_t>(e_.heads) / queries_per_group; }
  AttentionArguments arguments(std::span<const unsigned> rows, unsigned splits) const {
    AttentionArguments result{.slots = {no_slot, no_slot, no_slot, no_slot},
                              .layer = layer,
                              .max_pages = static_cast<unsigned>(max_pages_),
                              .pages_per_slab = static_cast<unsigned>(pages_per_slab_),
                              .page_stride = static_cast<unsigned>(page_stride_),
                              .splits = splits};
    std::ranges::copy(rows, result.slots);
    return result;
  }

  Gpu& gpu_;
  Extents e_;
  std::size_t max_pages_;
  std::size_t page_stride_;
  std::size_t pages_per_slab_;
  std::vector<float> q_norm_;
  std::vector<float> k_norm_;
  std::array<std::unique_ptr<Buffer>, 3> norms_;  // of q, of k; the table of RoPE
  std::unique_ptr<Buffer> slots_;
  std::unique_ptr<Buffer> page_table_;
  std::array<std::unique_ptr<Buffer>, calla_kernels::kv_slabs> slabs_;
};

class AttentionStep : public testing::TestWithParam<Shape> {
 protected:
  std::vector<float> inputs(std::size_t rows, unsigned seed) const {
    return normal_values(rows * e.projected, 0, 1, seed);
  }

  Extents e{GetParam()};
  Gpu gpu{GetParam()};
};

// In one pass, and through a split that has all positions, with the same bits.
TEST_P(AttentionStep, TakesAllPositionsAtOnce) {
  for (const unsigned position : {0U, 1U, 2U, 3U, 4U, 7U, 8U, 55U, 56U, 63U, 64U, 65U, 128U, 254U, 255U}) {
    const std::vector<float> projected = inputs(1, 10 + position);
    const Cache cache(gpu, GetParam(), 2, single_pass);
    cache.fill(1, position);
    const std::vector<float> mixed = cache.step({{1}}, projected);
    cache.check(1, projected, mixed);
    ASSERT_EQ(split_count(position + 1), 1U);
    EXPECT_TRUE(same_bits<float>(mixed, cache.split_step({{1}}, projected, 1))) << position;
    EXPECT_TRUE(same_bits<float>(mixed, cache.split_step({{1}}, projected, 3))) << position;
  }
}

// Splits of 64, of 128 and of 256 positions.
TEST_P(AttentionStep, TakesPositionsInSplits) {
  std::vector<unsigned> positions{256, 257, 319, 320, 511, 512, 1023};
  if (GetParam() == demo) positions.insert(positions.end(), {8191, 8192, 8300, 16384});
  for (const unsigned position : positions) {
    const std::vector<float> projected = inputs(1, position);
    const Cache cache(gpu, GetParam(), 1, position + 1);
    cache.fill(0, position);
    cache.check(0, projected, cache.split_step({{0}}, projected, split_count(position + 1)));
  }
}

// Steps in a row, over the end of a page, each reading what those before have appended.
TEST_P(AttentionStep, GoesOnFromWhatItAppended) {
  const Cache cache(gpu, GetParam(), 1, 2 * page_positions);
  for (unsigned position = 0; position < 6; ++position) {
    cache.slot(0).position = position;
    const std::vector<float> projected = inputs(1, 40 + position);
    cache.check(0, projected, cache.step({{0}}, projected));
  }
  cache.fill(0, 253);
  for (unsigned position = 253; position < 259; ++position) {
    cache.slot(0).position = position;
    const std::vector<float> projected = inputs(1, 50 + position);
    cache.check(0, projected, cache.split_step({{0}}, projected, split_count(position + 1)));
  }
}

// A row's result has the same bits alone and among others, in whatever row, whether theirs are more splits or
// fewer.
TEST_P(AttentionStep, RowsAreApart) {
  const std::array<unsigned, 4> positions{300, 0, 700, 63};
  const std::array<unsigned, 4> order{2, 1, 3, 0};
  const std::vector<float> projected = inputs(4, 60);
  const Cache cache(gpu, GetParam(), 4, 1024);
  for (std::size_t slot = 0; slot < 4; ++slot) cache.fill(slot, positions[slot]);
  const std::vector<float> all = cache.split_step(order, projected, split_count(701));
  for (std::size_t row = 0; row < 4; ++row) {
    const std::span<const float> own = std::span(projected).subspan(row * e.projected, e.projected);
    const std::span<const float> mixed = std::span(all).subspan(row * e.mixed, e.mixed);
    cache.check(order[row], own, mixed);
    const std::vector<float> copy(own.begin(), own.end());
    const unsigned splits = split_count(positions[order[row]] + 1);
    EXPECT_TRUE(same_bits<float>(cache.split_step({&order[row], 1}, copy, splits), mixed)) << row;
    if (splits == 1) {
      EXPECT_TRUE(same_bits<float>(cache.step({&order[row], 1}, copy), mixed)) << row;
    }
  }
}

// A row that has ended and one of no slot give zeros and leave everything as it was; a slot may have ended at
// the end of its context.
TEST_P(AttentionStep, RowsThatAreNotLiveChangeNothing) {
  const Cache cache(gpu, GetParam(), 1, page_positions);
  cache.fill(0, page_positions);
  cache.slot(0).ended = 1;
  const std::vector<std::uint16_t> before = cache.contents();
  const std::vector<unsigned> rows{0, no_slot};
  const std::vector<float> projected = inputs(2, 70);
  const auto all_zero = [](const std::vector<float>& values) {
    return std::ranges::all_of(values, [](float x) { return x == 0; });
  };
  EXPECT_TRUE(all_zero(cache.step(rows, projected)));
  EXPECT_TRUE(all_zero(cache.split_step(rows, projected, 2)));
  EXPECT_EQ(cache.contents(), before);
}

// Scores of up to some 200, of which exp alone would overflow.
TEST_P(AttentionStep, TakesLargeScores) {
  constexpr unsigned position = 100;
  const std::vector<float> projected = inputs(1, 80);
  const Cache cache(gpu, GetParam(), 1, page_positions);
  cache.fill(0, position);
  for (std::size_t p = 0; p < position; ++p) {
    for (std::size_t kv_head = 0; kv_head < e.kv_heads; ++kv_head) {
      for (std::uint16_t& x : cache.row(0, p, kv_head, 0))
        x = static_cast<std::uint16_t>(x + (6 << 7));  // times 64
    }
  }
  // The terms of a score are 64 times as large, and so is its error; but few positions have a share.
  cache.check(0, projected, cache.step({{0}}, projected), 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionStep, testing::Values(demo, qwen36_35b),
                         [](const auto& shape) { return shape.param == demo ? "Demo" : "Qwen"; });

}  // namespace
}  // namespace calla::metal
