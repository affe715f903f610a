#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "metal/decode_support.h"
#include "metal/kernels/decode_grids.h"

namespace calla::metal {
namespace {

using calla_kernels::delta_blocks;
using calla_kernels::mixer_out_rows;
using calla_kernels::mixer_out_threads;

struct Inputs {
  /// With head_sums for DeltaNet.
  Inputs(const Shape& shape, bool delta, std::size_t rows, unsigned seed)
      : stream(shape, rows, seed),
        width(static_cast<std::size_t>(delta ? shape.delta_value_dim() : shape.attention_dim())),
        mixed(normal_values(rows * width, 0, 1, seed + 2)) {
    if (!delta) return;
    const auto heads = static_cast<std::size_t>(shape.delta_value_heads);
    head_sums = normal_values(rows * heads * delta_blocks, 0, 2, seed + 3);
    for (float& x : head_sums) x *= x;
  }

  /// Row r of what W is multiplied by.
  std::vector<float> x(std::size_t r) const {
    const std::span<const float> row = row_of(mixed, r, width);
    std::vector<float> values(row.begin(), row.end());
    for (std::size_t i = 0; !head_sums.empty() && i < width; ++i) {
      double sum = 0;
      const std::size_t head = (r * width + i) / Shape::delta_head_dim;
      for (std::size_t block = 0; block < delta_blocks; ++block)
        sum += head_sums[head * delta_blocks + block];
      values[i] = static_cast<float>(values[i] / std::sqrt(sum / Shape::delta_head_dim + 1e-6));
    }
    return values;
  }
  Inputs row(std::size_t r) const {
    Inputs one = *this;
    one.stream = stream.row(r);
    for (std::vector<float>* values : {&one.mixed, &one.head_sums}) {
      const std::span<const float> own = row_of(*values, r, values->size() / stream.rows);
      *values = std::vector<float>(own.begin(), own.end());
    }
    return one;
  }

  TestStream stream;
  std::size_t width;
  std::vector<float> mixed;      // [rows][width]
  std::vector<float> head_sums;  // [rows][heads][delta_blocks]
};

StreamResult run(const Shape& shape, const TestMatrix& w, const Inputs& inputs) {
  Gpu gpu(shape);
  const DeviceMatrix matrix(gpu, w);
  const TestStream& stream = inputs.stream;
  const auto mixed = gpu.upload(inputs.mixed);
  const auto h = gpu.upload(stream.h);
  const auto gain = gpu.upload(stream.gain);
  const auto u = gpu.room<float>(stream.u.size());
  const auto square_sums = gpu.room<float>(stream.square_sums.size());
  const Grid grid{static_cast<std::uint32_t>(stream.hidden) / mixer_out_rows};
  if (inputs.head_sums.empty()) {
    gpu.run(variant("attention_out", stream.rows), mixer_out_threads,
            {View(matrix.words), View(matrix.scales), View(matrix.biases), View(mixed), View(h), View(gain),
             View(u), View(square_sums)},
            grid);
  } else {
    const auto head_sums = gpu.upload(inputs.head_sums);
    gpu.run(variant("delta_out", stream.rows), mixer_out_threads,
            {View(matrix.words), View(matrix.scales), View(matrix.biases), View(mixed), View(head_sums),
             View(h), View(gain), View(u), View(square_sums)},
            grid);
  }
  return {values_of<float>(h), values_of<float>(u), values_of<float>(square_sums)};
}

class MixerOut : public testing::TestWithParam<std::tuple<Shape, bool>> {};
INSTANTIATE_TEST_SUITE_P(Models, MixerOut,
                         testing::Combine(testing::Values(demo, qwen36_35b), testing::Bool()),
                         [](const auto& test) {
                           return name_of(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) ? "_delta" : "_attention");
                         });

TEST_P(MixerOut, AddsItsProductToTheStream) {
  const auto& [shape, delta] = GetParam();
  for (const std::size_t rows : {1U, 2U, 4U}) {
    const Inputs inputs(shape, delta, rows, 30);
    const TestMatrix w(static_cast<unsigned>(shape.hidden), static_cast<unsigned>(inputs.width), 4, 31);
    const StreamResult result = run(shape, w, inputs);
    result.expect_consistent(inputs.stream.gain);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::vector<float> x = inputs.x(r);
      // Every seventh row of W: all of its places in a threadgroup.
      for (unsigned row = 0; row < w.rows; row += 7) {
        const Product product(w, row, x);
        const std::size_t place = r * inputs.stream.hidden + row;
        const double expected = inputs.stream.h[place] + product.value;
        ASSERT_NEAR(result.h[place], expected, product.tolerance + 1e-6 * std::abs(expected))
            << "row " << row << " of " << r;
      }
    }
    const std::size_t last = rows - 1;
    if (rows == 1) continue;
    const StreamResult alone = run(shape, w, inputs.row(last));
    EXPECT_TRUE(same_row(result.h, rows, last, alone.h));
    EXPECT_TRUE(same_row(result.square_sums, rows, last, alone.square_sums));
  }
}

}  // namespace
}  // namespace calla::metal
