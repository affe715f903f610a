#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "metal/expert_rows.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/prefill_support.h"

namespace calla::metal {
namespace {

using namespace calla_kernels;

class ExpertsPrefill : public testing::TestWithParam<Shape> {
 protected:
  const Shape shape = GetParam();
  const unsigned hidden = static_cast<unsigned>(shape.hidden);
  const unsigned width = static_cast<unsigned>(shape.expert_hidden);
  const unsigned shared_width = static_cast<unsigned>(shape.shared_expert_hidden);
  Gpu gpu{shape};
};

TEST_P(ExpertsPrefill, GateAndUpOfGatheredRows) {
  const TestMatrix gate(used_experts * width, hidden, 4, 1);
  const TestMatrix up(used_experts * width, hidden, 4, 2);
  const DeviceMatrix gates(gpu, gate);
  const DeviceMatrix ups(gpu, up);
  // The first tiles of outputs.
  const unsigned columns = (shape == demo ? 2 : 1) * gate_up_columns;
  const auto run = [&](const Rows& rows, unsigned tile) {
    const Groups groups(gpu, rows, shape, tile);
    const auto inner = gpu.room<float>(8 * index(rows.count) * width);
    gpu.run("experts_gate_up_" + std::to_string(tile), gemm_threads,
            {gates.words, gates.scales, gates.biases, ups.words, ups.scales, ups.biases, gpu.upload(rows.x),
             groups.pairs, groups.blocks, inner},
            Grid{groups.places, columns / gate_up_columns});
    return scattered(inner, width, columns, values_of<unsigned>(groups.pairs));
  };

  const Rows rows(shape, shape == demo ? 70 : 5, 3);  // of the demo more than a block, ragged ones for all
  const std::vector<float> inner = run(rows, 32);
  for (unsigned p = 0; p < 8 * rows.count; p += shape == demo ? 1 : 5) {
    const unsigned expert = rows.routes[p / 8].expert[p % 8];
    for (unsigned n = 0; n < columns; n += 3) {
      const Gated expected(row_of(rows.x, p / 8, hidden), gate, up, expert * width + n);
      ASSERT_NEAR(inner[index(p) * columns + n], expected.value, expected.tolerance) << p << ' ' << n;
    }
  }
  EXPECT_TRUE(same_bits<float>(run(rows, 16), inner));
  Rows alone = rows;
  alone.count = 1;
  alone.x.resize(hidden);
  alone.routes.resize(1);
  EXPECT_TRUE(same_bits<float>(run(alone, 16), std::span<const float>(inner).first(8 * columns)));
}

TEST_P(ExpertsPrefill, DownToThePlacesOfThePairs) {
  const TestMatrix down(used_experts * hidden, width, 4, 1);
  const DeviceMatrix downs(gpu, down);
  constexpr unsigned columns = 2 * gemm_columns;
  const Rows rows(shape, shape == demo ? 70 : 21, 4);
  const std::vector<float> by_pair = normal_values(8 * index(rows.count) * width, 0, 1, 5);
  std::vector<float> results;
  for (const unsigned tile : {16U, 32U}) {
    const Groups groups(gpu, rows, shape, tile);
    const std::vector<float> inner = gathered(by_pair, width, values_of<unsigned>(groups.pairs));
    const auto out = gpu.room<float>(8 * index(rows.count) * hidden);
    gpu.run("experts_down_rows_" + std::to_string(tile), gemm_threads,
            {downs.words, downs.scales, downs.biases, gpu.upload(inner), groups.pairs, groups.blocks, out},
            Grid{groups.places, columns / gemm_columns});
    const std::vector<float> computed = first_columns(out, 8 * index(rows.count), hidden, columns);
    if (tile == 16) {
      results = computed;
    } else {
      EXPECT_TRUE(same_bits<float>(computed, results));
    }
  }
  for (unsigned p = 0; p < 8 * rows.count; ++p) {
    const unsigned expert = rows.routes[p / 8].expert[p % 8];
    for (unsigned n = 0; n < columns; n += 7) {
      const Dot expected(row_of(by_pair, p, width), down.row(expert * hidden + n));
      ASSERT_NEAR(results[index(p) * columns + n], expected.value, expected.tolerance) << p << ' ' << n;
    }
  }
}

TEST_P(ExpertsPrefill, SharedExpertsGateAndUp) {
  const TestMatrix gate(shared_width, hidden, 4, 1);
  const TestMatrix up(shared_width, hidden, 4, 2);
  const DeviceMatrix gates(gpu, gate);
  const DeviceMatrix ups(gpu, up);
  constexpr unsigned columns = 2 * gate_up_columns;
  constexpr unsigned most = 67;
  const std::vector<float> x = normal_values(index(most) * hidden, 0, 1, 3);
  std::vector<float> whole;
  for (const auto& [rows, tile] : {std::pair{most, 64U}, std::pair{most, 32U}, std::pair{1U, 32U}}) {
    const auto inner = gpu.room<float>(index(rows) * shared_width);
    const std::vector<float> last(x.end() - static_cast<std::ptrdiff_t>(rows * hidden), x.end());
    gpu.run("shared_gate_up_" + std::to_string(tile), gemm_threads,
            {gates.words, gates.scales, gates.biases, ups.words, ups.scales, ups.biases, gpu.upload(last),
             inner, constants(RowsArguments{rows})},
            Grid{tiles(rows, tile), columns / gate_up_columns});
    const std::vector<float> computed = first_columns(inner, rows, shared_width, columns);
    if (whole.empty()) {
      whole = computed;
    } else {
      EXPECT_TRUE(same_bits<float>(computed, std::span<const float>(whole).last(computed.size())));
    }
  }
  for (unsigned n = 0; n < columns; ++n) {
    for (unsigned t = 0; t < most; t += 6) {
      const Gated expected(row_of(x, t, hidden), gate, up, n);
      ASSERT_NEAR(whole[index(t) * columns + n], expected.value, expected.tolerance) << t << ' ' << n;
    }
  }
}

TEST_P(ExpertsPrefill, CombineAddsToTheStreamAndNormalises) {
  const Rows rows(shape, 5, 8);
  const std::vector<float> pair_out = normal_values(8 * index(rows.count) * hidden, 0, 1, 1);
  const std::vector<float> shared_out = normal_values(index(rows.count) * hidden, 0, 1, 2);
  const std::vector<float> before = normal_values(index(rows.count) * hidden, 0, 2, 3);
  const std::vector<float> gain = normal_values(hidden, 1, 0.3F, 4);
  const auto h = gpu.upload(before);
  const auto x = gpu.room<float>(before.size());
  gpu.run("combine", row_threads,
          {gpu.upload(pair_out), gpu.upload(shared_out), gpu.upload(rows.routes), h, gpu.upload(gain), x},
          Grid{rows.count});
  for (unsigned t = 0; t < rows.count; ++t) {
    const Route& route = rows.routes[t];
    std::vector<double> stream(hidden);
    double squares = 0;
    for (unsigned i = 0; i < hidden; ++i) {
      const std::size_t at = index(t) * hidden + i;
      double mixed = double{route.shared} * shared_out[at];
      for (unsigned e = 0; e < 8; ++e)
        mixed += double{route.share[e]} * pair_out[(8 * index(t) + e) * hidden + i];
      stream[i] = before[at] + mixed;
      squares += stream[i] * stream[i];
      // Ten roundings of values below 8.
      ASSERT_NEAR(h->as<float>()[at], stream[i], 4e-6) << t << ' ' << i;
    }
    const double scale = 1 / std::sqrt(squares / hidden + 1e-6);
    for (unsigned i = 0; i < hidden; ++i) {
      const std::size_t at = index(t) * hidden + i;
      const double expected = stream[i] * scale * gain[i];
      ASSERT_NEAR(x->as<float>()[at], expected, 1e-6 * std::abs(expected) + 4e-6 * scale * 2)
          << t << ' ' << i;
    }
  }
  // The norm is that of norm_rows.
  const auto again = gpu.room<float>(before.size());
  gpu.run("norm_rows", row_threads, {h, gpu.upload(gain), again}, Grid{rows.count});
  EXPECT_TRUE(same_bits<float>(again->as<const float>(), x->as<const float>()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExpertsPrefill, testing::Values(demo, qwen36_35b),
                         [](const auto& test) { return test.param == demo ? "Demo" : "Qwen36"; });

TEST(GroupTile, FollowsTheRowsOfAnExpert) {
  EXPECT_EQ(group_tile(1, 256, false), 16U);
  EXPECT_EQ(group_tile(512, 256, false), 16U);
  EXPECT_EQ(group_tile(1024, 256, false), 32U);
  EXPECT_EQ(group_tile(1, 256, true), 32U);
  EXPECT_EQ(group_blocks(1, 16, 256), 9U);
  EXPECT_EQ(group_blocks(1024, 32, 256), 512U);
}

}  // namespace
}  // namespace calla::metal
