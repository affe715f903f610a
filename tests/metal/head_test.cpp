#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "metal/decode_support.h"
#include "metal/kernels/decode_grids.h"

namespace calla::metal {
namespace {

using calla_kernels::head_rows;
using calla_kernels::head_threads;
using calla_kernels::no_slot;
using calla_kernels::Peak;
using calla_kernels::SlotState;
using calla_kernels::StepRows;

constexpr unsigned tiles = 3;  // threadgroups, of as many as the vocabulary has
constexpr unsigned tokens = tiles * head_rows;
constexpr std::size_t slots = 4;

struct Outputs {
  std::vector<float> logits;  // [slots][vocabulary]
  std::vector<Peak> peaks;    // [slots][vocabulary / head_rows]
};

constexpr float untouched = -77;

Outputs run(const Shape& shape, const TestMatrix& w, const TestStream& stream, const StepRows& rows,
            std::size_t ended = slots) {
  Gpu gpu(shape);
  const DeviceMatrix matrix(gpu, w);
  const auto u = gpu.upload(stream.u);
  const auto square_sums = gpu.upload(stream.square_sums);
  const auto vocabulary = static_cast<std::size_t>(shape.vocabulary);
  const auto logits = gpu.upload(std::vector<float>(slots * vocabulary, untouched));
  const auto peaks = gpu.upload(std::vector<Peak>(slots * vocabulary / head_rows, Peak{untouched, 0}));
  std::vector<SlotState> states(slots);
  if (ended < slots) states[ended].ended = 1;
  const auto slot_states = gpu.upload(states);
  gpu.run(variant("head", stream.rows), head_threads,
          {View(matrix.words), View(matrix.scales), View(matrix.biases), View(u), View(square_sums),
           View(logits), View(peaks), View(slot_states), constants(rows)},
          {tiles});
  return {values_of<float>(logits), values_of<Peak>(peaks)};
}

/// The peaks must be those of the logits.
void expect_peaks(const Outputs& outputs, std::size_t slot, std::size_t vocabulary) {
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const auto begin = outputs.logits.begin() + static_cast<std::ptrdiff_t>(slot * vocabulary);
    const auto first = begin + static_cast<std::ptrdiff_t>(tile * head_rows);
    const auto best = std::max_element(first, first + head_rows);  // the first of equals
    const Peak& peak = outputs.peaks[slot * vocabulary / head_rows + tile];
    EXPECT_EQ(peak.logit, *best);
    EXPECT_EQ(peak.token, static_cast<unsigned>(best - begin));
  }
}

class Head : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Models, Head, testing::Values(demo, qwen36_35b), model_name);

TEST_P(Head, WritesTheLogitsOfEachSlot) {
  const Shape& shape = GetParam();
  const auto vocabulary = static_cast<std::size_t>(shape.vocabulary);
  const TestMatrix w(tokens, static_cast<unsigned>(shape.hidden), 4, 90);
  for (const StepRows& rows : {StepRows{{2, no_slot, no_slot, no_slot}}, StepRows{{3, 0, no_slot, no_slot}},
                               StepRows{{1, 3, 0, no_slot}}}) {
    const auto live = static_cast<std::size_t>(std::count_if(std::begin(rows.slots), std::end(rows.slots),
                                                             [](unsigned slot) { return slot != no_slot; }));
    const TestStream stream(shape, live == 3 ? 4 : live, 91);
    const Outputs outputs = run(shape, w, stream, rows);
    std::vector<bool> written(slots);
    for (std::size_t r = 0; r < live; ++r) {
      const std::size_t slot = rows.slots[r];
      written[slot] = true;
      const double norm = stream.norm(r);
      for (unsigned token = 0; token < tokens; ++token) {
        const Product product(w, token, stream.u_row(r));
        const double expected = norm * product.value;
        ASSERT_NEAR(outputs.logits[slot * vocabulary + token], expected,
                    norm * product.tolerance + 1e-6 * std::abs(expected))
            << "token " << token << " of slot " << slot;
      }
      expect_peaks(outputs, slot, vocabulary);
      if (live == 1) continue;
      const Outputs alone = run(shape, w, stream.row(r), {{rows.slots[r], no_slot, no_slot, no_slot}});
      EXPECT_TRUE(
          same_bits(row_of(outputs.logits, slot, vocabulary), row_of(alone.logits, slot, vocabulary)));
    }
    for (std::size_t slot = 0; slot < slots; ++slot) {
      const std::span<const float> others = row_of(outputs.logits, slot, vocabulary).subspan(tokens);
      EXPECT_TRUE(std::all_of(others.begin(), others.end(), [](float x) { return x == untouched; }));
      if (written[slot]) continue;
      EXPECT_EQ(outputs.logits[slot * vocabulary], untouched);
      EXPECT_EQ(outputs.peaks[slot * vocabulary / head_rows].logit, untouched);
    }
  }
}

TEST_P(Head, LeavesASlotThatHasEndedAsItIs) {
  const Shape& shape = GetParam();
  const auto vocabulary = static_cast<std::size_t>(shape.vocabulary);
  const TestMatrix w(tokens, static_cast<unsigned>(shape.hidden), 4, 96);
  const TestStream stream(shape, 2, 97);
  const Outputs outputs = run(shape, w, stream, {{3, 0, no_slot, no_slot}}, 3);
  EXPECT_EQ(outputs.logits[3 * vocabulary], untouched);
  EXPECT_EQ(outputs.peaks[3 * vocabulary / head_rows].logit, untouched);
  EXPECT_NE(outputs.logits[0], untouched);
  expect_peaks(outputs, 0, vocabulary);
}

TEST_P(Head, PeaksAreTheLowestIdAmongEquals) {
  const Shape& shape = GetParam();
  TestMatrix w(tokens, static_cast<unsigned>(shape.hidden), 4, 92);
  // The same weights in every ninth row, so that the best of a tile come several times, in different
  // SIMD-groups and lanes.
  const std::size_t words = w.words.size() / tokens;
  const std::size_t groups = w.scales.size() / tokens;
  for (std::size_t row = 9; row < tokens; ++row) {
    std::copy_n(w.words.begin() + static_cast<std::ptrdiff_t>(row % 9 * words), words,
                w.words.begin() + static_cast<std::ptrdiff_t>(row * words));
    for (std::vector<std::uint16_t>* values : {&w.scales, &w.biases})
      std::copy_n(values->begin() + static_cast<std::ptrdiff_t>(row % 9 * groups), groups,
                  values->begin() + static_cast<std::ptrdiff_t>(row * groups));
  }
  const Outputs outputs = run(shape, w, TestStream(shape, 1, 93), {{0, no_slot, no_slot, no_slot}});
  expect_peaks(outputs, 0, static_cast<std::size_t>(shape.vocabulary));
}

}  // namespace
}  // namespace calla::metal
