#include <vector>

#include <gtest/gtest.h>

#include "metal/decode_support.h"
#include "metal/kernels/decode_grids.h"

namespace calla::metal {
namespace {

using calla_kernels::embed_columns;
using calla_kernels::embed_threads;
using calla_kernels::no_slot;
using calla_kernels::SlotState;
using calla_kernels::square_columns;
using calla_kernels::StepRows;

constexpr unsigned tokens = 300;  // rows of the embedding that are there

class Embed : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Models, Embed, testing::Values(demo, qwen36_35b), model_name);

TEST_P(Embed, StartsTheStreamOfLiveRows) {
  const Shape& shape = GetParam();
  const auto hidden = static_cast<unsigned>(shape.hidden);
  const TestMatrix embedding(tokens, hidden, 4, 1);
  const TestStream stream(shape, 1, 2);  // for its gain
  Gpu gpu(shape);
  const DeviceMatrix matrix(gpu, embedding);
  const auto slots = gpu.upload(
      std::vector<SlotState>{{5, 0, 0, 1}, {9, tokens - 1, 0, 1}, {3, 0xffffffffU, 1, 1}, {2, 123, 0, 1}});
  const auto gain = gpu.upload(stream.gain);
  const auto h = gpu.room<float>(4 * hidden);
  const auto u = gpu.room<float>(4 * hidden);
  const auto square_sums = gpu.room<float>(4 * hidden / square_columns);
  const StepRows rows{{3, no_slot, 1, 2}};
  gpu.run("embed", embed_threads,
          {View(matrix.words), View(matrix.scales), View(matrix.biases), View(slots), View(gain), View(h),
           View(u), View(square_sums), constants(rows)},
          {hidden / embed_columns, 4});

  const StreamResult result{values_of<float>(h), values_of<float>(u), values_of<float>(square_sums)};
  const std::vector<float> none(hidden);
  // Slot 2 has ended, and its token is none.
  const std::vector<std::vector<float>> expected{embedding.row(123), none, embedding.row(tokens - 1), none};
  for (std::size_t r = 0; r < 4; ++r) EXPECT_TRUE(same_row(result.h, 4, r, expected[r])) << r;
  result.expect_consistent(stream.gain);
}

TEST_P(Embed, TakesTheLastRowOfAPrompt) {
  const Shape& shape = GetParam();
  const auto hidden = static_cast<unsigned>(shape.hidden);
  const TestStream stream(shape, 5, 3);
  Gpu gpu(shape);
  const auto h = gpu.upload(stream.h);
  const auto gain = gpu.upload(stream.gain);
  for (const unsigned row : {0U, 2U, 4U}) {
    const auto u = gpu.room<float>(hidden);
    const auto square_sums = gpu.room<float>(hidden / square_columns);
    gpu.run("last_row", embed_threads, {View(h), View(gain), View(u), View(square_sums), constants(row)},
            {hidden / embed_columns});
    const TestStream expected = stream.row(row);
    EXPECT_EQ(values_of<float>(u), expected.u);
    StreamResult{expected.h, values_of<float>(u), values_of<float>(square_sums)}.expect_consistent(
        stream.gain);
  }
}

}  // namespace
}  // namespace calla::metal
