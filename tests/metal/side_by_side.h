// Matrices as the dense products take them, up to four side by side.
#pragma once
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "metal/kernels/prefill_arguments.h"
#include "metal/prefill_support.h"

namespace calla::metal {

using namespace calla_kernels;

/// Some matrices side by side as a kernel is given them.
struct SideBySide {
  SideBySide(Gpu& gpu, const std::vector<unsigned>& heights, unsigned columns) {
    unsigned seed = 10;
    for (const unsigned height : heights) {
      matrices.emplace_back(height, columns, 4, seed++);
      on_device.emplace_back(gpu, matrices.back());
    }
    unsigned end = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      if (i < matrices.size()) end += matrices[i].rows;
      ends.at(i) = end;
    }
  }

  void run(Gpu& gpu, const std::string& kernel, unsigned tile, const View& x, const View& out,
           unsigned rows) const {
    const auto& m = on_device;
    const auto at = [&](std::size_t i) -> const DeviceMatrix& { return m[std::min(i, m.size() - 1)]; };
    const GemmProjectArguments args = {rows, matrices[0].columns, {ends[0], ends[1], ends[2], ends[3]}};
    gpu.run(kernel, gemm_threads,
            {at(0).words, at(0).scales, at(0).biases, at(1).words, at(1).scales, at(1).biases, at(2).words,
             at(2).scales, at(2).biases, at(3).words, at(3).scales, at(3).biases, x, out, constants(args)},
            Grid{tiles(rows, tile), tiles(ends[3], gemm_columns)});
  }

  std::vector<float> row(unsigned output) const {
    std::size_t matrix = 0;
    while (output >= ends.at(matrix)) ++matrix;
    return matrices[matrix].row(matrix == 0 ? output : output - ends.at(matrix - 1));
  }

  std::vector<TestMatrix> matrices;
  std::vector<DeviceMatrix> on_device;
  std::array<unsigned, 4> ends{};
};

inline void expect_product(const std::vector<float>& out, const std::vector<float>& x, const SideBySide& w,
                           Operands operands = Operands::exact) {
  const std::size_t columns = w.matrices[0].columns;
  const std::size_t outputs = w.ends[3];
  for (unsigned n = 0; n < outputs; ++n) {
    const std::vector<float> weights = w.row(n);
    for (std::size_t t = 0; t < out.size() / outputs; ++t) {
      const Dot expected(row_of(x, t, columns), weights, operands);
      ASSERT_NEAR(out[t * outputs + n], expected.value, expected.tolerance) << t << ' ' << n;
    }
  }
}

}  // namespace calla::metal
