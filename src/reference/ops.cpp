#include "reference/ops.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

namespace calla::reference {

float dot(std::span<const float> x, std::span<const float> y) {
  assert(x.size() == y.size());
  // Sixteen partial sums: the compiler may not reorder a float sum by itself, and many short sums round less
  // than a long one.
  constexpr std::size_t lanes = 16;
  std::array<float, lanes> sums{};
  std::size_t i = 0;
  for (; i + lanes <= x.size(); i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += x[i + lane] * y[i + lane];
  }
  for (; i < x.size(); ++i) sums[i % lanes] += x[i] * y[i];
  for (std::size_t width = lanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

Rows linear(const AffineMatrix& w, std::span<const float> x) {
  const auto columns = static_cast<std::size_t>(w.columns);
  const auto rows = static_cast<std::size_t>(w.rows);
  const std::size_t tokens = x.size() / columns;
  assert(x.size() == tokens * columns);
  Rows y(tokens * rows);
  std::vector<float> weights(columns);
  for (std::size_t r = 0; r < rows; ++r) {
    dequantize_row(w, static_cast<int>(r), weights);
    for (std::size_t t = 0; t < tokens; ++t) y[t * rows + r] = dot(weights, x.subspan(t * columns, columns));
  }
  return y;
}

void rms_norm(std::span<const float> x, std::span<const float> gain, std::span<float> y) {
  assert(x.size() == y.size() && x.size() % gain.size() == 0);
  for (std::size_t row = 0; row < x.size(); row += gain.size()) {
    const std::span<const float> in = x.subspan(row, gain.size());
    const float mean_square = dot(in, in) / static_cast<float>(gain.size());
    const float scale = 1.0F / std::sqrt(mean_square + rms_norm_epsilon);
    for (std::size_t i = 0; i < gain.size(); ++i) y[row + i] = in[i] * scale * gain[i];
  }
}

Rows rms_norm(std::span<const float> x, std::span<const float> gain) {
  Rows y(x.size());
  rms_norm(x, gain, y);
  return y;
}

void l2_normalise(std::span<float> x, float scale) {
  const float factor = scale / std::sqrt(dot(x, x) + 1e-6F);
  for (float& value : x) value *= factor;
}

void softmax(std::span<float> x) {
  const float peak = *std::max_element(x.begin(), x.end());
  float sum = 0;
  for (float& value : x) {
    value = std::exp(value - peak);
    sum += value;
  }
  for (float& value : x) value /= sum;
}

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }
float silu(float x) { return x * sigmoid(x); }
float softplus(float x) { return std::max(x, 0.0F) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace calla::reference
