// The products by tensor units: as exact as float32 sums are, of operands rounded to bfloat16.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "metal/expert_rows.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/prefill_support.h"
#include "metal/side_by_side.h"

namespace calla::metal {
namespace {

TEST(GemmTensor, ProjectsRowsToTheSameBitsInAnyNumber) {
  CALLA_REQUIRE_TENSOR_UNITS();
  for (const unsigned columns : {64U, 2048U}) {
    Gpu gpu(qwen36_35b);
    const SideBySide w(gpu, {40, 32, 24, 1}, columns);
    const unsigned outputs = w.ends[3];
    const unsigned most = columns == 64 ? 130 : 65;
    const std::vector<float> x = normal_values(index(most) * columns, 0.1F, 1, 3);
    const auto out = gpu.room<float>(index(most) * outputs);
    w.run(gpu, "gemm_tensor_project", 64, gpu.upload(x), out, most);
    const std::vector<float> whole = values_of<float>(out);
    expect_product(whole, x, w, Operands::bfloat16);
    for (const unsigned rows : {1U, 33U, 64U, 65U}) {
      if (columns > 64 && rows > 1) continue;  // the checkers take their time
      const std::vector<float> some(x.end() - static_cast<std::ptrdiff_t>(rows * columns), x.end());
      const auto fewer = gpu.room<float>(index(rows) * outputs);
      w.run(gpu, "gemm_tensor_project", 64, gpu.upload(some), fewer, rows);
      EXPECT_TRUE(same_bits<float>(fewer->as<const float>(), std::span(whole).last(index(rows) * outputs)))
          << rows;
    }
  }
}

TEST(GemmTensor, OneMatrixWithAndWithoutTheResidualStream) {
  CALLA_REQUIRE_TENSOR_UNITS();
  Gpu gpu(demo);
  constexpr unsigned columns = 128;
  constexpr unsigned outputs = 136;
  constexpr unsigned rows = 67;
  const SideBySide w(gpu, {outputs}, columns);
  const std::vector<float> x = normal_values(index(rows) * columns, 0, 1, 5);
  const std::vector<float> h = normal_values(index(rows) * outputs, 0, 4, 6);
  const auto x_there = gpu.upload(x);
  const auto out = gpu.room<float>(h.size());
  const auto stream = gpu.upload(h);
  const DeviceMatrix& m = w.on_device[0];
  const Grid grid = {tiles(rows, 64), tiles(outputs, gemm_columns)};
  for (const auto& [kernel, to] :
       {std::pair{"gemm_tensor", View(out)}, std::pair{"gemm_tensor_add", View(stream)}}) {
    gpu.run(kernel, gemm_threads,
            {m.words, m.scales, m.biases, x_there, to, constants(GemmArguments{rows, columns, outputs})},
            grid);
  }
  expect_product(values_of<float>(out), x, w, Operands::bfloat16);
  for (std::size_t i = 0; i < h.size(); ++i)
    ASSERT_EQ(stream->as<float>()[i], h[i] + out->as<float>()[i]) << i;
}

class ExpertsTensor : public testing::TestWithParam<Shape> {
 protected:
  const Shape shape = GetParam();
  const unsigned hidden = static_cast<unsigned>(shape.hidden);
  const unsigned width = static_cast<unsigned>(shape.expert_hidden);
  const unsigned shared_width = static_cast<unsigned>(shape.shared_expert_hidden);
  Gpu gpu{shape};
};

TEST_P(ExpertsTensor, GateAndUpThenDown) {
  CALLA_REQUIRE_TENSOR_UNITS();
  const TestMatrix gate(used_experts * width, hidden, 4, 1);
  const TestMatrix up(used_experts * width, hidden, 4, 2);
  const TestMatrix down(used_experts * hidden, width, 4, 3);
  const DeviceMatrix gates(gpu, gate);
  const DeviceMatrix ups(gpu, up);
  const DeviceMatrix downs(gpu, down);
  const Rows rows(shape, shape == demo ? 40 : 2, 3);
  const std::size_t pair_count = 8 * index(rows.count);
  const Groups groups(gpu, rows, shape, 32);
  const std::vector<unsigned> pairs = values_of<unsigned>(groups.pairs);

  const auto inner = gpu.room<float>(pair_count * width);
  gpu.run("experts_gate_up_tensor", gemm_threads,
          {gates.words, gates.scales, gates.biases, ups.words, ups.scales, ups.biases, gpu.upload(rows.x),
           groups.pairs, groups.blocks, inner},
          Grid{groups.places, 1});
  const std::vector<float> first = scattered(inner, width, gate_up_columns, pairs);
  for (unsigned p = 0; p < pair_count; p += 3) {
    const unsigned expert = rows.routes[p / 8].expert[p % 8];
    for (unsigned n = 0; n < gate_up_columns; n += 5) {
      const Gated expected(row_of(rows.x, p / 8, hidden), gate, up, expert * width + n, Operands::bfloat16);
      ASSERT_NEAR(first[p * gate_up_columns + n], expected.value, expected.tolerance) << p << ' ' << n;
    }
  }

  const std::vector<float> by_pair = normal_values(pair_count * width, 0, 1, 5);
  const auto out = gpu.room<float>(pair_count * hidden);
  gpu.run("experts_down_rows_tensor", gemm_threads,
          {downs.words, downs.scales, downs.biases, gpu.upload(gathered(by_pair, width, pairs)), groups.pairs,
           groups.blocks, out},
          Grid{groups.places, 1});
  const std::vector<float> results = first_columns(out, pair_count, hidden, gemm_columns);
  for (unsigned p = 0; p < pair_count; ++p) {
    const unsigned expert = rows.routes[p / 8].expert[p % 8];
    for (unsigned n = 0; n < gemm_columns; n += 7) {
      const Dot expected(row_of(by_pair, p, width), down.row(expert * hidden + n), Operands::bfloat16);
      ASSERT_NEAR(results[p * gemm_columns + n], expected.value, expected.tolerance) << p << ' ' << n;
    }
  }
}

TEST_P(ExpertsTensor, SharedExpertsGateAndUp) {
  CALLA_REQUIRE_TENSOR_UNITS();
  const TestMatrix gate(shared_width, hidden, 4, 1);
  const TestMatrix up(shared_width, hidden, 4, 2);
  const DeviceMatrix gates(gpu, gate);
  const DeviceMatrix ups(gpu, up);
  const unsigned rows = shape == demo ? 65 : 5;
  const std::vector<float> x = normal_values(index(rows) * hidden, 0, 1, 3);
  const auto inner = gpu.room<float>(index(rows) * shared_width);
  gpu.run("shared_gate_up_tensor", gemm_threads,
          {gates.words, gates.scales, gates.biases, ups.words, ups.scales, ups.biases, gpu.upload(x), inner,
           constants(RowsArguments{rows})},
          Grid{tiles(rows, 64), 1});
  const std::vector<float> computed = first_columns(inner, rows, shared_width, gate_up_columns);
  for (unsigned t = 0; t < rows; t += 4) {
    for (unsigned n = 0; n < gate_up_columns; n += 3) {
      const Gated expected(row_of(x, t, hidden), gate, up, n, Operands::bfloat16);
      ASSERT_NEAR(computed[index(t) * gate_up_columns + n], expected.value, expected.tolerance)
          << t << ' ' << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExpertsTensor, testing::Values(demo, qwen36_35b),
                         [](const auto& test) { return test.param == demo ? "Demo" : "Qwen36"; });

}  // namespace
}  // namespace calla::metal
