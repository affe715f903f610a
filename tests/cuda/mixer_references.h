// One head of the mixers in plain loops over double, which the kernels of prefill and of decode are held to.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "model/shape.h"

namespace calla::cuda {

inline double silu_of(double x) { return x / (1 + std::exp(-x)); }
inline double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

using AttentionRow = std::array<double, Shape::attention_head_dim>;

/// RMS norm with a gain, then RoPE: turn(j) gives the cosine and the sine of the pair j.
template <class Turn>
AttentionRow normed_and_turned(const AttentionRow& x, std::span<const float> gain, Turn turn) {
  AttentionRow out{};
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double rms = std::sqrt(squares / Shape::attention_head_dim + rms_norm_epsilon);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = x[i] * gain[i] / rms;
  constexpr std::size_t half = Shape::rotary_dim / 2;
  for (std::size_t j = 0; j < half; ++j) {
    const auto [cosine, sine] = turn(j);
    const double low = out[j];
    const double high = out[j + half];
    out[j] = low * cosine - high * sine;
    out[j + half] = high * cosine + low * sine;
  }
  return out;
}

/// softmax(q K' / 16) V over the positions 0 .. visible - 1; key(p) and value(p) give 256 elements each.
template <class Key, class Value>
AttentionRow attend(const AttentionRow& q, int visible, Key key, Value value) {
  std::vector<double> scores(static_cast<std::size_t>(visible));
  double peak = -INFINITY;
  for (int p = 0; p < visible; ++p) {
    const auto row = key(p);
    double sum = 0;
    for (std::size_t i = 0; i < q.size(); ++i) sum += q[i] * row[i];
    scores[static_cast<std::size_t>(p)] = sum / 16;
    peak = std::max(peak, sum / 16);
  }
  double total = 0;
  AttentionRow out{};
  for (int p = 0; p < visible; ++p) {
    const double share = std::exp(scores[static_cast<std::size_t>(p)] - peak);
    const auto row = value(p);
    total += share;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += share * row[i];
  }
  for (double& x : out) x /= total;
  return out;
}

using DeltaRow = std::array<double, Shape::delta_head_dim>;

/// The recurrence of Gated DeltaNet.
class DeltaHead {
 public:
  static constexpr std::size_t dim = Shape::delta_head_dim;

  /// `state` [v][k].
  explicit DeltaHead(std::span<const float> state) : state_(state.begin(), state.end()) {}

  /// A token's output before its norm: q, k and v as the convolution leaves them, a and b as projected.
  DeltaRow step(DeltaRow q, DeltaRow k, const DeltaRow& v, double a, double b, double a_log, double dt_bias) {
    const auto squares = [](const DeltaRow& row) {
      double sum = 1e-6;
      for (const double x : row) sum += x * x;
      return sum;
    };
    const double q_length = std::sqrt(squares(q) * dim);
    const double k_length = std::sqrt(squares(k));
    for (double& x : q) x /= q_length;
    for (double& x : k) x /= k_length;
    const double decay = std::exp(-std::exp(a_log) * std::log1p(std::exp(a + dt_bias)));
    const double beta = sigmoid_of(b);
    DeltaRow out{};
    for (std::size_t j = 0; j < dim; ++j) {
      double* const row = state_.data() + j * dim;
      double predicted = 0;
      for (std::size_t i = 0; i < dim; ++i) {
        row[i] *= decay;
        predicted += row[i] * k[i];
      }
      const double update = (v[j] - predicted) * beta;
      for (std::size_t i = 0; i < dim; ++i) {
        row[i] += k[i] * update;
        out[j] += row[i] * q[i];
      }
    }
    return out;
  }
  std::span<const double> state() const { return state_; }

 private:
  std::vector<double> state_;
};

inline double rms_of(const DeltaRow& o) {
  double squares = 0;
  for (const double x : o) squares += x * x;
  return std::sqrt(squares / Shape::delta_head_dim + 1e-6);
}

}  // namespace calla::cuda
