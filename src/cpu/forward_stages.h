// What the stages of the forward pass have in common, for their sources alone.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/forward.h"

namespace calla::cpu {

inline constexpr int group = Shape::quantization_group;
inline constexpr int head_dim = Shape::attention_head_dim;
inline constexpr int delta_dim = Shape::delta_head_dim;
inline constexpr int top = Shape::experts_per_token;
inline constexpr int tile_rows =
    128;  // rows that a thread multiplies a panel with before it turns to the next
inline constexpr int query_tokens = 8;  // tokens whose queries walk over the keys together
inline constexpr int state_floats =
    head_dim + 16;  // of one row's attention state; peak and sum lie behind the output

inline std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

inline int padded(int rows) { return panel_count(rows) * panel_rows; }

/// The columns of everything that a layer's first projection writes.
inline int projected_columns(const Shape& s) {
  return std::max(padded(s.convolution_channels() + s.delta_value_dim() + 2 * s.delta_value_heads),
                  padded(2 * s.attention_dim() + 2 * s.kv_dim()));
}
inline int mixed_columns(const Shape& s) { return std::max(s.delta_value_dim(), s.attention_dim()); }

inline float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

/// What one thread needs for itself.
template <Shape S>
struct Forward<S>::Scratch {
  static constexpr int queries = query_tokens * S.attention_heads / S.kv_heads;

  explicit Scratch(int max_rows) : decay(size(max_rows)), beta(size(max_rows)) {}

  alignas(64) std::array<float, tile_rows * panel_rows> tile;
  alignas(64) std::array<float, tile_rows * panel_rows> second_tile;
  alignas(64) std::array<float, tile_rows * group> inner;
  alignas(64) std::array<float, queries * head_dim> attention_out;
  std::array<float, queries> peaks;
  std::array<float, queries> sums;
  std::array<std::int32_t, queries> limits;
  std::vector<float> decay;
  std::vector<float> beta;
};

template <Shape S>
template <class Done>
void Forward<S>::product(Range panels, const Panels& w, QuantisedRows x, std::span<const std::int32_t> rows,
                         Scratch& scratch, Done done) {
  // The activations of a block of rows stay in second-level cache while the panels pass by.
  constexpr int block_bytes = 256 << 10;
  const int block = std::clamp(block_bytes / (x.columns * x.planes), 8, tile_rows);
  for (int first = 0; first < static_cast<int>(rows.size()); first += block) {
    const int count = std::min(block, static_cast<int>(rows.size()) - first);
    for (int panel = panels.first; panel < panels.last; ++panel) {
      kernels_.linear4(w.panel(panel), x, rows.data() + first, count, scratch.tile.data());
      done(panel, first, count, scratch.tile.data());
    }
  }
}

}  // namespace calla::cpu
