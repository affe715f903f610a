#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "metal/delta_recurrence.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/mixer_grids.h"
#include "metal/mixer_support.h"
#include "model/shape.h"

namespace calla::metal {
namespace {

using calla_kernels::delta_blocks;
using calla_kernels::DeltaArguments;
using calla_kernels::no_slot;
using calla_kernels::SlotState;
using calla_kernels::window_rows;

/// A layer's small weights, on the device too.
struct Layer : DeltaLayer {
  Layer(Gpu& gpu, const DeltaExtents& e)
      : DeltaLayer(e), buffers{gpu.upload(conv), gpu.upload(a_log), gpu.upload(dt_bias), gpu.upload(norm)} {}

  std::array<std::unique_ptr<Buffer>, 4> buffers;
};

/// Slots of one layer on the device.
class Slots {
 public:
  Slots(Gpu& gpu, const Layer& layer, const Shape& shape, std::size_t slots)
      : gpu_(gpu),
        layer_(layer),
        e_(shape),
        states_(gpu.upload(std::vector<float>(slots * state_stride()))),
        windows_(gpu.upload(std::vector<float>(slots * window_stride()))),
        slots_(gpu.upload(std::vector<SlotState>(slots))) {}

  struct Result {
    std::vector<float> mixed;
    std::vector<float> head_sums;
  };
  /// A step of the slots of `rows`, which have `projected` [rows][e.projected].
  Result step(std::span<const unsigned> rows, const std::vector<float>& projected) {
    DeltaArguments arguments{.slots = {no_slot, no_slot, no_slot, no_slot},
                             .state_stride = static_cast<unsigned>(state_stride()),
                             .window_stride = static_cast<unsigned>(window_stride())};
    std::ranges::copy(rows, arguments.slots);
    const auto inputs = gpu_.upload(projected);
    const auto mixed = gpu_.room<float>(rows.size() * e_.value_dim);
    const auto head_sums = gpu_.room<float>(rows.size() * e_.heads * delta_blocks);
    gpu_.run(
        "delta_step", calla_kernels::delta_step_threads,
        {inputs, View(windows_, layer_offset * sizeof(float)), View(states_, layer_offset * sizeof(float)),
         layer_.buffers[0], layer_.buffers[1], layer_.buffers[2], layer_.buffers[3], slots_, mixed, head_sums,
         constants(arguments)},
        {static_cast<std::uint32_t>(e_.heads) * delta_blocks, static_cast<std::uint32_t>(rows.size()), 1});
    return {values_of<float>(mixed), values_of<float>(head_sums)};
  }

  SlotState& slot(std::size_t index) const { return slots_->as<SlotState>()[index]; }
  std::span<float> state(std::size_t slot) const {
    return states_->as<float>().subspan(slot * state_stride() + layer_offset, e_.state);
  }
  std::span<float> window(std::size_t slot) const {
    return windows_->as<float>().subspan(slot * window_stride() + layer_offset, e_.window);
  }

 private:
  // As of a second, small layer before this one, and a third behind it.
  static constexpr std::size_t layer_offset = 64;
  std::size_t state_stride() const { return e_.state + 2 * layer_offset; }
  std::size_t window_stride() const { return e_.window + 2 * layer_offset; }

  Gpu& gpu_;
  const Layer& layer_;
  DeltaExtents e_;
  std::unique_ptr<Buffer> states_;
  std::unique_ptr<Buffer> windows_;
  std::unique_ptr<Buffer> slots_;
};

/// The largest difference, in units of the largest value.
template <class T>
double error(const T& got, const std::vector<double>& expected) {
  double difference = 0;
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, known(got[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return difference / largest;
}

class DeltaStep : public testing::TestWithParam<Shape> {
 protected:
  std::vector<float> inputs(std::size_t rows, unsigned seed) const {
    return normal_values(rows * e.projected, 0, 1, seed);
  }

  /// Of one row, whole.
  std::vector<double> head_sums(const Slots::Result& result) const {
    std::vector<double> sums(e.heads);
    for (std::size_t i = 0; i < result.head_sums.size(); ++i) sums[i / delta_blocks] += result.head_sums[i];
    return sums;
  }

  DeltaExtents e{GetParam()};
  Gpu gpu{GetParam()};
  Layer layer{gpu, e};
};

// Six steps: the convolution's window fills, and its ring begins anew. Float32 against double: sums of 128
// products are known to a few units of the last place, 6e-8, of the largest values.
TEST_P(DeltaStep, FollowsTheRecurrence) {
  Slots slots(gpu, layer, GetParam(), 2);
  DeltaRecurrence recurrence(e, layer);
  const unsigned slot = 1;
  std::vector<double> out;
  std::vector<double> sums;
  for (unsigned position = 0; position < 6; ++position) {
    const std::vector<float> projected = inputs(1, 100 + position);
    slots.slot(slot).position = position;
    const Slots::Result result = slots.step({{slot}}, projected);
    recurrence.step(projected, out, sums);

    EXPECT_LT(error(result.mixed, out), 2e-6) << "at position " << position;
    EXPECT_LT(error(head_sums(result), sums), 2e-6) << "sums at position " << position;
    EXPECT_LT(error(slots.state(slot), recurrence.state()), 2e-6) << "state at position " << position;
    const auto newest = slots.window(slot).subspan(position % window_rows * e.channels, e.channels);
    EXPECT_TRUE(same_bits<float>(newest, std::span(projected).first(e.channels))) << "window at " << position;
  }
}

// A row's result, state and window have the same bits alone and among others, in whatever row.
TEST_P(DeltaStep, RowsAreApart) {
  constexpr std::array<unsigned, 4> positions{0, 7, 2, 261};
  const std::array<unsigned, 4> order{2, 0, 3, 1};
  const std::vector<float> projected = inputs(4, 200);
  const auto fill = [&](const Slots& slots) {
    for (unsigned slot = 0; slot < 4; ++slot) {
      slots.slot(slot).position = positions[slot];
      std::ranges::copy(normal_values(e.state, 0, 0.1F, 300 + slot), slots.state(slot).begin());
      std::ranges::copy(normal_values(e.window, 0, 1, 400 + slot), slots.window(slot).begin());
    }
  };
  Slots together(gpu, layer, GetParam(), 4);
  fill(together);
  const Slots::Result all = together.step(order, projected);
  Slots alone(gpu, layer, GetParam(), 4);
  fill(alone);
  for (std::size_t row = 0; row < 4; ++row) {
    const std::span<const float> own = std::span(projected).subspan(row * e.projected, e.projected);
    const Slots::Result one = alone.step({&order[row], 1}, {own.begin(), own.end()});
    EXPECT_TRUE(same_bits<float>(one.mixed, std::span(all.mixed).subspan(row * e.value_dim, e.value_dim)))
        << row;
    EXPECT_TRUE(same_bits<float>(
        one.head_sums,
        std::span(all.head_sums).subspan(row * e.heads * delta_blocks, e.heads * delta_blocks)))
        << row;
    EXPECT_TRUE(same_bits<float>(alone.state(order[row]), together.state(order[row]))) << row;
    EXPECT_TRUE(same_bits<float>(alone.window(order[row]), together.window(order[row]))) << row;
  }
}

// A row that has ended and one of no slot give zeros and leave everything as it was.
TEST_P(DeltaStep, RowsThatAreNotLiveChangeNothing) {
  Slots slots(gpu, layer, GetParam(), 2);
  for (unsigned slot = 0; slot < 2; ++slot) {
    slots.slot(slot).position = 5;
    std::ranges::copy(normal_values(e.state, 0, 0.1F, 500 + slot), slots.state(slot).begin());
  }
  slots.slot(1).ended = 1;
  const std::vector<float> state(slots.state(1).begin(), slots.state(1).end());
  const std::vector<float> window(slots.window(1).begin(), slots.window(1).end());
  const Slots::Result result = slots.step({{1, 0, no_slot}}, inputs(3, 600));
  EXPECT_TRUE(same_bits<float>(slots.state(1), state));
  EXPECT_TRUE(same_bits<float>(slots.window(1), window));
  for (const std::size_t row : {0, 2}) {
    for (std::size_t i = 0; i < e.value_dim; ++i) ASSERT_EQ(result.mixed[row * e.value_dim + i], 0.0F);
    for (std::size_t i = 0; i < e.heads * delta_blocks; ++i)
      ASSERT_EQ(result.head_sums[row * e.heads * delta_blocks + i], 0.0F);
  }
}

// Gates that are shut, wide open or far off, and keys of zeros, give what they should and no NaN.
TEST_P(DeltaStep, TakesExtremeInputs) {
  Slots slots(gpu, layer, GetParam(), 1);
  DeltaRecurrence recurrence(e, layer);
  std::vector<double> out;
  std::vector<double> sums;
  for (unsigned position = 0; position < 3; ++position) {
    std::vector<float> projected = inputs(1, 700 + position);
    std::fill_n(projected.begin() + static_cast<std::ptrdiff_t>(e.key_dim), e.dim, 0.0F);  // the first key
    constexpr std::array<float, 4> extremes{-300, -20, 20, 300};
    for (std::size_t i = 0; i < e.value_dim + 2 * e.heads; i += 3)
      projected[e.channels + i] = extremes[i % 4];
    slots.slot(0).position = position;
    const Slots::Result result = slots.step({{0}}, projected);
    recurrence.step(projected, out, sums);
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(result.mixed[i], out[i], 1e-5 * (1 + std::abs(out[i]))) << i << " at " << position;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeltaStep, testing::Values(demo, qwen36_35b),
                         [](const auto& shape) { return shape.param == demo ? "Demo" : "Qwen"; });

}  // namespace
}  // namespace calla::metal
