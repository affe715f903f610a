#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "metal/kernels/prefill_arguments.h"
#include "metal/prefill_support.h"
#include "metal/side_by_side.h"

namespace calla::metal {
namespace {

using namespace calla_kernels;

TEST(Gemm, ProjectsAllRowsToTheSameBitsInAnyNumberAndTile) {
  // What both models have side by side: heights that straddle tiles, b and a of 32 rows or 8.
  struct Case {
    Shape shape;
    std::vector<unsigned> heights;
    unsigned columns;
  };
  for (const Case& c : {Case{demo, {96, 64, 8, 8}, 512}, Case{qwen36_35b, {64, 32, 32, 32}, 2048},
                        Case{demo, {40, 32, 24}, 64}, Case{demo, {128}, 64}}) {
    Gpu gpu(c.shape);
    const SideBySide w(gpu, c.heights, c.columns);
    const unsigned outputs = w.ends[3];
    constexpr unsigned most = 130;
    const std::vector<float> x = normal_values(index(most) * c.columns, 0.1F, 1, 3);
    const auto whole_out = gpu.room<float>(index(most) * outputs);
    w.run(gpu, "gemm_project_64", 64, gpu.upload(x), whole_out, most);
    const std::vector<float> whole = values_of<float>(whole_out);
    expect_product(whole, x, w);
    for (const unsigned rows : {1U, 2U, 7U, 31U, 32U, 33U, 63U, 64U, 65U, 100U}) {
      for (const unsigned tile : {32U, 64U}) {
        if (c.columns > 64 && rows != 1 && rows != 33) continue;  // the checkers take their time
        // The last ones of the rows, so that a row is in another place of its tile.
        const std::vector<float> some(x.end() - static_cast<std::ptrdiff_t>(rows * c.columns), x.end());
        const auto out = gpu.room<float>(index(rows) * outputs);
        w.run(gpu, "gemm_project_" + std::to_string(tile), tile, gpu.upload(some), out, rows);
        EXPECT_TRUE(same_bits<float>(out->as<const float>(), std::span(whole).last(index(rows) * outputs)))
            << rows << " rows, tiles of " << tile;
      }
    }
  }
}

TEST(Gemm, OneMatrixWithAndWithoutTheResidualStream) {
  for (const unsigned columns : {64U, 1024U, 4096U}) {
    Gpu gpu(demo);
    const unsigned outputs = columns == 64 ? 136 : 64;
    const SideBySide w(gpu, {outputs}, columns);
    for (const unsigned tile : {32U, 64U}) {
      const unsigned rows = columns == 64 ? tile + 3 : 9;
      const std::vector<float> x = normal_values(index(rows) * columns, 0, 1, 5);
      const std::vector<float> h = normal_values(index(rows) * outputs, 0, 4, 6);
      const auto x_there = gpu.upload(x);
      const auto out = gpu.room<float>(h.size());
      const auto stream = gpu.upload(h);
      const DeviceMatrix& m = w.on_device[0];
      const GemmArguments args = {rows, columns, outputs};
      const Grid grid = {tiles(rows, tile), tiles(outputs, gemm_columns)};
      const std::string suffix = std::to_string(tile);
      gpu.run("gemm_" + suffix, gemm_threads, {m.words, m.scales, m.biases, x_there, out, constants(args)},
              grid);
      gpu.run("gemm_add_" + suffix, gemm_threads,
              {m.words, m.scales, m.biases, x_there, stream, constants(args)}, grid);
      expect_product(values_of<float>(out), x, w);
      const std::vector<float> sum = values_of<float>(stream);
      for (std::size_t i = 0; i < h.size(); ++i) ASSERT_EQ(sum[i], h[i] + out->as<float>()[i]) << i;
    }
  }
}

TEST(Gemm, RouterAndSharedGateHaveEightBits) {
  for (const Shape& shape : {demo, qwen36_35b}) {
    Gpu gpu(shape);
    const auto experts = static_cast<unsigned>(shape.experts);
    const auto hidden = static_cast<unsigned>(shape.hidden);
    const TestMatrix router(experts, hidden, 8, 1);
    const TestMatrix gate(1, hidden, 8, 2);
    const DeviceMatrix router_there(gpu, router);
    const DeviceMatrix gate_there(gpu, gate);
    constexpr unsigned rows = 33;
    const std::vector<float> x = normal_values(index(rows) * hidden, 0, 1, 3);
    const auto x_there = gpu.upload(x);
    const auto run = [&](const View& from, const View& logits, unsigned count) {
      gpu.run("gemm_router", gemm_threads,
              {router_there.words, router_there.scales, router_there.biases, gate_there.words,
               gate_there.scales, gate_there.biases, from, logits, constants(RowsArguments{count})},
              Grid{tiles(count, 32), tiles(experts + 1, gemm_columns)});
    };
    const auto logits = gpu.room<float>(index(rows) * (experts + 1));
    run(x_there, logits, rows);
    for (unsigned n = 0; n <= experts; ++n) {
      const std::vector<float> weights = n < experts ? router.row(n) : gate.row(0);
      for (unsigned t = 0; t < rows; ++t) {
        const Dot expected(row_of(x, t, hidden), weights);
        ASSERT_NEAR(logits->as<float>()[index(t) * (experts + 1) + n], expected.value, expected.tolerance)
            << t << ' ' << n;
      }
    }
    const auto alone = gpu.room<float>(experts + 1);
    run(View(x_there, index(rows - 1) * hidden * sizeof(float)), alone, 1);
    EXPECT_TRUE(same_bits<float>(alone->as<const float>(), logits->as<const float>().last(experts + 1)));
  }
}

TEST(Gemm, TilesAreTallOnlyWhereThatIsNotPadding) {
  EXPECT_EQ(gemm_tile(1, false), 32U);
  EXPECT_EQ(gemm_tile(128, false), 32U);
  EXPECT_EQ(gemm_tile(129, false), 32U);
  EXPECT_EQ(gemm_tile(192, false), 64U);
  EXPECT_EQ(gemm_tile(1024, false), 64U);
  EXPECT_EQ(gemm_tile(1, true), 64U);
}

}  // namespace
}  // namespace calla::metal
