// What the tests of the decode kernels that stream weights share: the residual stream, and what products with
// quantised matrices must be.
#pragma once
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "metal/kernels/arguments.h"
#include "metal/mixer_support.h"
#include "metal/prefill_support.h"

namespace calla::metal {

/// A row of a quantised matrix times x in double, and what the kernels' float32 sum may be off by. They sum
/// s (sum q x) + b (sum x): m, the sum of the magnitudes of s q x and b x, bounds every partial sum, and no
/// summand passes more than 32 roundings of up to 2^-24 m on its way (8 steps of multiplying and adding in a
/// quarter of a chunk, 2 + 2 + 4 additions to put chunks together, 5 over the lanes).
struct Product {
  Product(const TestMatrix& matrix, unsigned row, std::span<const float> x) {
    const AffineMatrix w = matrix.view();
    const std::vector<float> weights = matrix.row(row);
    double magnitudes = 0;
    for (std::size_t c = 0; c < x.size(); ++c) {
      const double bias = w.bias(static_cast<int>(row), static_cast<int>(c / 64));
      value += double{x[c]} * weights[c];
      magnitudes += std::abs(double{x[c]}) * (std::abs(weights[c] - bias) + std::abs(bias));
    }
    tolerance = 32 * 0x1p-24 * magnitudes;
  }

  double value = 0;
  double tolerance = 0;
};

/// Rows of the residual stream, as a kernel before has left them.
struct TestStream {
  TestStream(const Shape& shape, std::size_t row_count, unsigned seed)
      : rows(row_count),
        hidden(static_cast<std::size_t>(shape.hidden)),
        h(normal_values(rows * hidden, 0.1F, 1, seed)),
        gain(normal_values(hidden, 1, 0.3F, seed + 1)),
        u(h.size()),
        square_sums(h.size() / calla_kernels::square_columns) {
    for (std::size_t i = 0; i < h.size(); ++i) {
      u[i] = h[i] * gain[i % hidden];
      square_sums[i / calla_kernels::square_columns] += h[i] * h[i];
    }
  }

  std::span<const float> u_row(std::size_t r) const { return row_of(u, r, hidden); }
  /// 1 / sqrt(mean h^2 + 1e-6).
  double norm(std::size_t r) const {
    double sum = 0;
    for (const float x : row_of(h, r, hidden)) sum += double{x} * x;
    return 1 / std::sqrt(sum / static_cast<double>(hidden) + 1e-6);
  }
  /// The stream of one of its rows alone.
  TestStream row(std::size_t r) const {
    TestStream one = *this;
    one.rows = 1;
    const auto cut = [&](std::vector<float>& values) {
      const std::size_t width = values.size() / rows;
      const std::span<const float> own = row_of(values, r, width);
      values = std::vector<float>(own.begin(), own.end());
    };
    cut(one.h);
    cut(one.u);
    cut(one.square_sums);
    return one;
  }

  std::size_t rows;
  std::size_t hidden;
  std::vector<float> h;            // [rows][hidden]
  std::vector<float> gain;         // [hidden]
  std::vector<float> u;            // [rows][hidden]
  std::vector<float> square_sums;  // [rows][hidden / square_columns]
};

/// silu(gate n) * (up n) for one row of each matrix, n the norm of row r of the stream. The slope of silu is
/// at most 1.1.
struct SwigluValue {
  SwigluValue(const TestMatrix& gate, const TestMatrix& up, unsigned row, const TestStream& stream,
              std::size_t r) {
    const double norm = stream.norm(r);
    const Product g(gate, row, stream.u_row(r));
    const Product f(up, row, stream.u_row(r));
    const double activation = silu_of(norm * g.value);
    value = activation * norm * f.value;
    tolerance = 1.1 * norm * g.tolerance * std::abs(norm * f.value) +
                std::abs(activation) * norm * f.tolerance + 2e-6 * std::abs(value) +
                1e-6 * std::abs(norm * g.value * norm * f.value);
  }

  double value = 0;
  double tolerance = 0;
};

/// What a kernel that adds to the stream has made of it.
struct StreamResult {
  std::vector<float> h;
  std::vector<float> u;
  std::vector<float> square_sums;

  /// u and the sums of squares must be those of h.
  void expect_consistent(std::span<const float> gain) const {
    for (std::size_t i = 0; i < h.size(); ++i) ASSERT_EQ(u[i], h[i] * gain[i % gain.size()]) << i;
    for (std::size_t i = 0; i < square_sums.size(); ++i) {
      double sum = 0;
      for (std::size_t c = 0; c < calla_kernels::square_columns; ++c) {
        const double x = h[i * calla_kernels::square_columns + c];
        sum += x * x;
      }
      ASSERT_NEAR(square_sums[i], sum, 1e-6 * sum) << i;
    }
  }
};

/// Whether row `r` of `rows` rows of results has the bits of a run of that row alone.
inline bool same_row(const std::vector<float>& all, std::size_t rows, std::size_t r,
                     const std::vector<float>& alone) {
  const std::size_t width = all.size() / rows;
  return same_bits(row_of(all, r, width), std::span<const float>(alone));
}

/// Of a test's instance.
inline std::string name_of(const Shape& shape) { return shape == demo ? "demo" : "qwen36_35b"; }
inline std::string model_name(const testing::TestParamInfo<Shape>& test) { return name_of(test.param); }

/// The kernel's name for so many rows.
inline std::string variant(const char* kernel, std::size_t rows) {
  return std::string(kernel) + "_" + std::to_string(rows);
}

}  // namespace calla::metal
