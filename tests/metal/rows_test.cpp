#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "metal/kernels/prefill_arguments.h"
#include "metal/prefill_support.h"

namespace calla::metal {
namespace {

using namespace calla_kernels;

TEST(Rows, EmbedsAsTheReferenceDoesToTheBit) {
  for (const Shape& shape : {demo, qwen36_35b}) {
    Gpu gpu(shape);
    const auto hidden = static_cast<unsigned>(shape.hidden);
    const TestMatrix embedding(40, hidden, 4, 1);
    const DeviceMatrix matrix(gpu, embedding);
    const std::vector<unsigned> tokens = {7, 0, 39, 7, 21};
    const auto h = gpu.room<float>(tokens.size() * hidden);
    gpu.run("embed_rows", row_threads, {matrix.words, matrix.scales, matrix.biases, gpu.upload(tokens), h},
            Grid{static_cast<unsigned>(tokens.size())});
    const std::vector<float> rows = values_of<float>(h);
    for (std::size_t t = 0; t < tokens.size(); ++t)
      EXPECT_TRUE(same_bits<float>(row_of(rows, t, hidden), embedding.row(tokens[t]))) << t;
  }
}

TEST(Rows, NormaliseEachByItself) {
  for (const Shape& shape : {demo, qwen36_35b}) {
    Gpu gpu(shape);
    const auto hidden = static_cast<unsigned>(shape.hidden);
    constexpr unsigned rows = 3;
    std::vector<float> h = normal_values(index(rows) * hidden, 0, 2, 1);
    for (unsigned i = 0; i < hidden; ++i) h[hidden + i] *= 1e-4F;  // epsilon counts
    for (unsigned i = 0; i < hidden; ++i) h[2 * hidden + i] = 0;
    const std::vector<float> gain = normal_values(hidden, 1, 0.5F, 2);
    const auto stream = gpu.upload(h);
    const auto gains = gpu.upload(gain);
    const auto x = gpu.room<float>(h.size());
    gpu.run("norm_rows", row_threads, {stream, gains, x}, Grid{rows});
    const std::vector<float> normed = values_of<float>(x);
    for (unsigned t = 0; t < rows; ++t) {
      double squares = 0;
      for (const float value : row_of(h, t, hidden)) squares += double{value} * value;
      const double scale = 1.0 / std::sqrt(squares / hidden + 1e-6);
      for (unsigned i = 0; i < hidden; ++i) {
        const double expected = h[index(t) * hidden + i] * scale * gain[i];
        // The sum of squares has no cancellation; it, the root and two products round a few times each.
        ASSERT_NEAR(normed[index(t) * hidden + i], expected, 1e-6 * std::abs(expected)) << t << ' ' << i;
      }
    }
    // The last row alone has the same bits.
    const auto alone = gpu.room<float>(hidden);
    gpu.run("norm_rows", row_threads, {View(stream, hidden * sizeof(float)), gains, alone}, Grid{1});
    EXPECT_TRUE(same_bits<float>(row_of(normed, 1, hidden), alone->as<const float>()));
  }
}

}  // namespace
}  // namespace calla::metal
