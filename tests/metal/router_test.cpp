#include <vector>

#include <gtest/gtest.h>

#include "metal/decode_support.h"
#include "metal/kernels/decode_grids.h"

namespace calla::metal {
namespace {

using calla_kernels::router_rows;
using calla_kernels::router_threads;
using calla_kernels::shared_up_rows;
using calla_kernels::shared_up_threads;

class DecodeExpertsInput : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Models, DecodeExpertsInput, testing::Values(demo, qwen36_35b), model_name);

std::vector<float> run(const Shape& shape, const char* kernel, unsigned threads, unsigned groups,
                       const TestMatrix& first, const TestMatrix& second, const TestStream& stream,
                       std::size_t width) {
  Gpu gpu(shape);
  const DeviceMatrix a(gpu, first);
  const DeviceMatrix b(gpu, second);
  const auto u = gpu.upload(stream.u);
  const auto square_sums = gpu.upload(stream.square_sums);
  const auto out = gpu.room<float>(stream.rows * width);
  gpu.run(variant(kernel, stream.rows), threads,
          {View(a.words), View(a.scales), View(a.biases), View(b.words), View(b.scales), View(b.biases),
           View(u), View(square_sums), View(out)},
          {groups});
  return values_of<float>(out);
}

TEST_P(DecodeExpertsInput, HasALogitForEachExpertAndTheSharedGate) {
  const Shape& shape = GetParam();
  const auto experts = static_cast<unsigned>(shape.experts);
  const TestMatrix router(experts, static_cast<unsigned>(shape.hidden), 8, 40);
  const TestMatrix gate(1, static_cast<unsigned>(shape.hidden), 8, 41);
  const auto logits_of = [&](const TestStream& stream) {
    return run(shape, "router", router_threads, (experts + router_rows) / router_rows, router, gate, stream,
               experts + 1);
  };
  for (const std::size_t rows : {1U, 2U, 4U}) {
    const TestStream stream(shape, rows, 42);
    const std::vector<float> logits = logits_of(stream);
    for (std::size_t r = 0; r < rows; ++r) {
      const double norm = stream.norm(r);
      for (unsigned row = 0; row <= experts; ++row) {
        const Product product =
            row < experts ? Product(router, row, stream.u_row(r)) : Product(gate, 0, stream.u_row(r));
        ASSERT_NEAR(logits[r * (experts + 1) + row], norm * product.value,
                    norm * product.tolerance + 1e-6 * std::abs(norm * product.value))
            << row << " of " << r;
      }
      if (rows == 1) continue;
      EXPECT_TRUE(same_row(logits, rows, r, logits_of(stream.row(r))));
    }
  }
}

TEST_P(DecodeExpertsInput, HasTheSharedExpertsFirstHalf) {
  const Shape& shape = GetParam();
  const auto width = static_cast<unsigned>(shape.shared_expert_hidden);
  const TestMatrix gate(width, static_cast<unsigned>(shape.hidden), 4, 50);
  const TestMatrix up(width, static_cast<unsigned>(shape.hidden), 4, 51);
  const auto inner_of = [&](const TestStream& stream) {
    return run(shape, "shared_up", shared_up_threads, width / shared_up_rows, gate, up, stream, width);
  };
  for (const std::size_t rows : {1U, 2U, 4U}) {
    const TestStream stream(shape, rows, 52);
    const std::vector<float> inner = inner_of(stream);
    for (std::size_t r = 0; r < rows; ++r) {
      for (unsigned row = 0; row < width; row += 3) {
        const SwigluValue expected(gate, up, row, stream, r);
        ASSERT_NEAR(inner[r * width + row], expected.value, expected.tolerance) << row << " of " << r;
      }
    }
    const std::size_t last = rows - 1;
    if (rows == 1) continue;
    EXPECT_TRUE(same_row(inner, rows, last, inner_of(stream.row(last))));
  }
}

}  // namespace
}  // namespace calla::metal
