#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "metal/delta_recurrence.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/mixer_arguments.h"
#include "metal/kernels/mixer_grids.h"
#include "metal/mixer_support.h"
#include "model/shape.h"

namespace calla::metal {
namespace {

using calla_kernels::delta_blocks;
using calla_kernels::DeltaArguments;
using calla_kernels::DeltaPrefillArguments;
using calla_kernels::no_slot;
using calla_kernels::SlotState;
using calla_kernels::window_rows;

/// One slot's state and window of one layer on the device.
class Slot {
 public:
  Slot(Gpu& gpu, const DeltaExtents& e, const DeltaLayer& layer)
      : gpu_(gpu),
        e_(e),
        conv_(gpu.upload(layer.conv)),
        a_log_(gpu.upload(layer.a_log)),
        dt_bias_(gpu.upload(layer.dt_bias)),
        norm_(gpu.upload(layer.norm)),
        state_(gpu.upload(std::vector<float>(e.state))),
        window_(gpu.upload(std::vector<float>(e.window))) {}

  /// As of some sequence that has come so far.
  void fill(unsigned position) {
    position_ = position;
    std::ranges::copy(normal_values(e_.state, 0, 0.1F, 300 + position), state().begin());
    std::ranges::copy(normal_values(e_.window, 0, 1, 400 + position), window().begin());
  }

  /// Takes the tokens of `projected` [tokens][e.projected].
  std::vector<float> prefill(std::span<const float> projected) {
    const auto tokens = static_cast<std::uint32_t>(projected.size() / e_.projected);
    const auto key_heads = static_cast<std::uint32_t>(e_.key_heads);
    const auto heads = static_cast<std::uint32_t>(e_.heads);
    const DeltaPrefillArguments arguments{.tokens = tokens, .position = position_};
    const auto inputs = gpu_.upload(std::vector<float>(projected.begin(), projected.end()));
    const auto qkv = gpu_.room<float>(tokens * e_.channels);
    const auto gates = gpu_.room<float>(tokens * e_.heads * 2);
    const auto overlaps = gpu_.room<float>(tokens * e_.key_heads);
    const auto mixed = gpu_.room<float>(tokens * e_.value_dim);
    using namespace calla_kernels;
    gpu_.run({{{"delta_prepare",
                delta_prepare_threads,
                {inputs, window_, conv_, a_log_, dt_bias_, qkv, gates, overlaps, constants(arguments)},
                {(key_heads + heads) / 4, (tokens + delta_prepare_tokens - 1) / delta_prepare_tokens}}},
              {{"delta_window",
                delta_window_threads,
                {inputs, window_, constants(arguments)},
                {static_cast<std::uint32_t>(e_.channels) / 4 / delta_window_threads}},
               {"delta_scan",
                delta_scan_threads,
                {qkv, gates, overlaps, state_, mixed, constants(arguments)},
                {heads * delta_blocks / 2}}},
              {{"delta_gate", delta_gate_threads, {inputs, norm_, mixed}, {heads / 4, tokens}}}});
    position_ += tokens;
    return values_of<float>(mixed);
  }

  /// A decode step: the result without the heads' norms.
  std::vector<float> decode(std::span<const float> projected) {
    const DeltaArguments arguments{
        .slots = {0, no_slot, no_slot, no_slot}, .state_stride = 0, .window_stride = 0};
    const auto inputs = gpu_.upload(std::vector<float>(projected.begin(), projected.end()));
    const auto slots =
        gpu_.upload(std::vector<SlotState>{{.position = position_, .token = 0, .ended = 0, .draws = 0}});
    const auto mixed = gpu_.room<float>(e_.value_dim);
    const auto head_sums = gpu_.room<float>(e_.heads * delta_blocks);
    gpu_.run("delta_step", calla_kernels::delta_step_threads,
             {inputs, window_, state_, conv_, a_log_, dt_bias_, norm_, slots, mixed, head_sums,
              constants(arguments)},
             {static_cast<std::uint32_t>(e_.heads) * delta_blocks, 1, 1});
    ++position_;
    return values_of<float>(mixed);
  }

  unsigned position() const { return position_; }
  std::span<float> state() const { return state_->as<float>(); }
  std::span<float> window() const { return window_->as<float>(); }

 private:
  Gpu& gpu_;
  const DeltaExtents& e_;
  std::unique_ptr<Buffer> conv_;
  std::unique_ptr<Buffer> a_log_;
  std::unique_ptr<Buffer> dt_bias_;
  std::unique_ptr<Buffer> norm_;
  std::unique_ptr<Buffer> state_;
  std::unique_ptr<Buffer> window_;
  unsigned position_ = 0;
};

class DeltaPrefill : public testing::TestWithParam<Shape> {
 protected:
  std::vector<float> inputs(std::size_t tokens, unsigned seed) const {
    return normal_values(tokens * e.projected, 0, 1, seed);
  }
  std::span<const float> rows(const std::vector<float>& projected, std::size_t first,
                              std::size_t count) const {
    return std::span(projected).subspan(first * e.projected, count * e.projected);
  }

  /// Prefills and compares with the recurrence, from the slot's state on. Float32 against double: a sum of
  /// 128 products of values of about one rounds to some 1e-6 of its terms' size, and a state forgets its
  /// errors as it does its content.
  void expect_recurrence(Slot& slot, const std::vector<float>& projected, double tolerance = 2e-5) const {
    const std::size_t tokens = projected.size() / e.projected;
    const unsigned position = slot.position();
    DeltaRecurrence recurrence(e, layer);
    recurrence.start(slot.state(), slot.window(), position);
    const std::vector<float> before(slot.window().begin(), slot.window().end());
    const std::vector<float> mixed = slot.prefill(projected);

    double worst = 0;
    std::vector<double> out;
    std::vector<double> sums;
    for (std::size_t t = 0; t < tokens; ++t) {
      recurrence.step(rows(projected, t, 1), out, sums);
      for (std::size_t i = 0; i < out.size(); ++i) {
        const double expected =
            out[i] / std::sqrt(sums[i / e.dim] / static_cast<double>(e.dim) + rms_norm_epsilon);
        worst = std::max(worst, known(mixed[t * e.value_dim + i] - expected) / (1 + std::abs(expected)));
      }
    }
    EXPECT_LT(worst, tolerance) << tokens << " tokens at " << position;
    worst = 0;
    for (std::size_t i = 0; i < e.state; ++i)
      worst = std::max(worst, known(slot.state()[i] - recurrence.state()[i]));
    EXPECT_LT(worst, tolerance) << "state, " << tokens << " tokens at " << position;

    for (unsigned row = 0; row < window_rows; ++row) {
      const unsigned end = slot.position();
      const unsigned age = (end - 1 - row) % window_rows;  // of the newest position that has this place
      const std::span<const float> expected =
          age < tokens ? rows(projected, tokens - 1 - age, 1).first(e.channels)
                       : std::span<const float>(before).subspan(row * e.channels, e.channels);
      EXPECT_TRUE(same_bits<float>(slot.window().subspan(row * e.channels, e.channels), expected))
          << "window row " << row << ", " << tokens << " tokens at " << position;
    }
  }

  DeltaExtents e{GetParam()};
  Gpu gpu{GetParam()};
  Gpu fast{GetParam(), GetParam() != demo};  // for what takes the checkers too long
  DeltaLayer layer{e};
};

TEST_P(DeltaPrefill, FollowsTheRecurrenceFromTheBeginning) {
  const auto expect = [&](Gpu& on, std::size_t tokens) {
    Slot slot(on, e, layer);
    expect_recurrence(slot, inputs(tokens, static_cast<unsigned>(tokens)));
  };
  for (const std::size_t tokens : {1, 2, 3, 4, 7, 8, 9}) expect(gpu, tokens);
  if (GetParam() != demo) return;
  for (const std::size_t tokens : {31, 32, 33, 63, 64, 65, 130, 300}) expect(fast, tokens);
}

TEST_P(DeltaPrefill, FollowsTheRecurrenceFromAnyPosition) {
  const auto expect = [&](Gpu& on, unsigned position, std::size_t tokens) {
    Slot slot(on, e, layer);
    slot.fill(position);
    expect_recurrence(slot, inputs(tokens, position));
  };
  for (const unsigned position : {1U, 2U, 3U, 64U}) expect(gpu, position, 3);
  for (const unsigned position : {192U, 256U, 1001U, 1002U}) expect(fast, position, 5);
  if (GetParam() == demo) expect(fast, 1000, 33);
}

// Any cut gives the same bits, not only those at multiples of 64.
TEST_P(DeltaPrefill, PiecesAreTheWhole) {
  const std::size_t tokens = GetParam() == demo ? 200 : 10;
  const std::vector<float> projected = inputs(tokens, 50);
  Slot whole(fast, e, layer);
  whole.fill(64);
  const std::vector<float> mixed = whole.prefill(projected);
  for (const std::vector<std::size_t>& cuts : {std::vector<std::size_t>{64, 128}, {1, 3, 6, 69}}) {
    Slot slot(fast, e, layer);
    slot.fill(64);
    std::vector<float> pieces;
    std::size_t first = 0;
    const auto take = [&](std::size_t end) {
      const std::vector<float> piece = slot.prefill(rows(projected, first, end - first));
      pieces.insert(pieces.end(), piece.begin(), piece.end());
      first = end;
    };
    for (const std::size_t cut : cuts) {
      if (cut < tokens) take(cut);
    }
    take(tokens);
    EXPECT_TRUE(same_bits<float>(pieces, mixed));
    EXPECT_TRUE(same_bits<float>(slot.state(), whole.state()));
    EXPECT_TRUE(same_bits<float>(slot.window(), whole.window()));
  }
}

// Decode goes on where prefill ends, and prefill where decode does.
TEST_P(DeltaPrefill, DecodeGoesOn) {
  Slot slot(gpu, e, layer);
  expect_recurrence(slot, inputs(6, 60));
  DeltaRecurrence recurrence(e, layer);
  recurrence.start(slot.state(), slot.window(), slot.position());
  std::vector<double> out;
  std::vector<double> sums;
  for (unsigned step = 0; step < 3; ++step) {
    const std::vector<float> projected = inputs(1, 70 + step);
    const std::vector<float> mixed = slot.decode(projected);
    recurrence.step(projected, out, sums);
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(mixed[i], out[i], 1e-5 * (1 + std::abs(out[i]))) << i << " in step " << step;
  }
  expect_recurrence(slot, inputs(6, 80));
}

// Keys that hardly differ, gates nearly shut or wide open, decays from none to all: each update nearly takes
// back the one before it. The norm of a head that puts out next to nothing multiplies its errors by up to
// 1000.
TEST_P(DeltaPrefill, TakesExtremeInputs) {
  constexpr std::size_t tokens = 12;
  std::vector<float> projected = inputs(tokens, 90);
  constexpr std::array<float, 4> extremes{-300, -20, 20, 300};
  for (std::size_t t = 1; t < tokens; ++t) {
    float* row = &projected[t * e.projected];
    for (std::size_t i = e.key_dim; i < 2 * e.key_dim; ++i) row[i] = projected[i] + 0.01F * row[i];
    std::fill_n(row + e.key_dim, e.dim, 0.0F);  // the first head's keys
    for (std::size_t i = t % 3; i < e.value_dim + 2 * e.heads; i += 3)
      row[e.channels + i] = extremes[(i + t) % 4];
  }
  Slot slot(gpu, e, layer);
  slot.fill(64);
  expect_recurrence(slot, projected, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeltaPrefill, testing::Values(demo, qwen36_35b),
                         [](const auto& shape) { return shape.param == demo ? "Demo" : "Qwen"; });

}  // namespace
}  // namespace calla::metal
