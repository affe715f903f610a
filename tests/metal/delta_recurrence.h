// Gated DeltaNet of one slot and layer in double, token by token: what the kernels must give.
#pragma once
#include <cmath>
#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "metal/kernels/arguments.h"
#include "metal/mixer_support.h"
#include "model/shape.h"

namespace calla::metal {

/// Extents of a DeltaNet layer.
struct DeltaExtents {
  explicit DeltaExtents(const Shape& shape)
      : key_heads(static_cast<std::size_t>(shape.delta_key_heads)),
        heads(static_cast<std::size_t>(shape.delta_value_heads)),
        key_dim(static_cast<std::size_t>(shape.delta_key_dim())),
        value_dim(static_cast<std::size_t>(shape.delta_value_dim())),
        channels(static_cast<std::size_t>(shape.convolution_channels())),
        projected(channels + value_dim + 2 * heads),
        state(value_dim * dim),
        window(calla_kernels::window_rows * channels) {}

  static constexpr std::size_t dim = Shape::delta_head_dim;
  std::size_t key_heads;
  std::size_t heads;
  std::size_t key_dim;
  std::size_t value_dim;
  std::size_t channels;
  std::size_t projected;
  std::size_t state;
  std::size_t window;
};

/// A layer's small weights.
struct DeltaLayer {
  explicit DeltaLayer(const DeltaExtents& e)
      : conv(normal_values(e.channels * Shape::convolution_taps, 0, 0.5F, 11)),
        a_log(normal_values(e.heads, 0.5F, 1, 12)),
        dt_bias(normal_values(e.heads, -1, 2, 13)),
        norm(normal_values(e.dim, 1, 0.2F, 14)) {}

  std::vector<float> conv;
  std::vector<float> a_log;
  std::vector<float> dt_bias;
  std::vector<float> norm;
};

class DeltaRecurrence {
 public:
  DeltaRecurrence(const DeltaExtents& e, const DeltaLayer& layer)
      : e_(e),
        layer_(layer),
        state_(e.state),
        inputs_(Shape::convolution_taps, std::vector<double>(e.channels)) {}

  /// Goes on from a slot's state and window at `position`.
  void start(std::span<const float> state, std::span<const float> window, std::size_t position) {
    state_.assign(state.begin(), state.end());
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const std::size_t row = (position + i) % calla_kernels::window_rows;
      const std::span<const float> inputs = window.subspan(row * e_.channels, e_.channels);
      inputs_[i].assign(inputs.begin(), inputs.end());
    }
  }

  /// One token; `out` is o * norm * silu(z), `sums` the heads' sums of o^2.
  void step(std::span<const float> projected, std::vector<double>& out, std::vector<double>& sums) {
    constexpr std::size_t dim = DeltaExtents::dim;
    inputs_.pop_front();
    inputs_.emplace_back(projected.begin(), projected.begin() + static_cast<std::ptrdiff_t>(e_.channels));
    std::vector<double> c(e_.channels);
    for (std::size_t i = 0; i < e_.channels; ++i) {
      for (std::size_t tap = 0; tap < inputs_.size(); ++tap)
        c[i] += inputs_[tap][i] * layer_.conv[i * inputs_.size() + tap];
      c[i] = silu(c[i]);
    }
    for (std::size_t head = 0; head < 2 * e_.key_heads; ++head) {  // of q, then of k
      double squares = 1e-6;
      for (std::size_t i = 0; i < dim; ++i) squares += c[head * dim + i] * c[head * dim + i];
      if (head < e_.key_heads) squares *= dim;
      for (std::size_t i = 0; i < dim; ++i) c[head * dim + i] /= std::sqrt(squares);
    }
    out.assign(e_.value_dim, 0);
    sums.assign(e_.heads, 0);
    for (std::size_t head = 0; head < e_.heads; ++head) {
      const double* q = &c[head * e_.key_heads / e_.heads * dim];
      const double* k = q + e_.key_dim;
      const float* z = &projected[e_.channels];
      const double beta = 1 / (1 + std::exp(-double{z[e_.value_dim + head]}));
      const double a = z[e_.value_dim + e_.heads + head];
      const double decay =
          std::exp(-std::exp(double{layer_.a_log[head]}) * std::log1p(std::exp(a + layer_.dt_bias[head])));
      for (std::size_t j = 0; j < dim; ++j) {
        const std::size_t value = head * dim + j;
        double* s = &state_[value * dim];
        double update = c[2 * e_.key_dim + value];
        for (std::size_t i = 0; i < dim; ++i) {
          s[i] *= decay;
          update -= s[i] * k[i];
        }
        double o = 0;
        for (std::size_t i = 0; i < dim; ++i) {
          s[i] += k[i] * beta * update;
          o += s[i] * q[i];
        }
        sums[head] += o * o;
        out[value] = o * layer_.norm[j] * silu(z[value]);
      }
    }
  }
  const std::vector<double>& state() const { return state_; }  // [head][value][key]

 private:
  static double silu(double x) { return x / (1 + std::exp(-x)); }

  const DeltaExtents& e_;
  const DeltaLayer& layer_;
  std::vector<double> state_;
  std::deque<std::vector<double>> inputs_;  // of the last four tokens
};

}  // namespace calla::metal
