// What a sequence carries from token to token, as it lies in device memory.
#pragma once
#include <cstddef>

#include <cuda_bf16.h>

#include "model/shape.h"

namespace calla::cuda {

/// Keys and values lie in pages of 256 positions, all attention layers in one page; sequences and snapshots
/// share pages. A page is [attention layer][KV head][K, V][256 positions][256 dims], keys normed and turned.
inline constexpr int page_positions = 256;

template <Shape S>
constexpr std::size_t page_elements() {
  return std::size_t{2} * S.attention_layers() * S.kv_heads * page_positions * Shape::attention_head_dim;
}

/// Where, in elements from a page's beginning, the keys (values: 1) of a head of a layer begin.
template <Shape S>
constexpr std::size_t page_offset(int attention_layer, int kv_head, int values) {
  return ((static_cast<std::size_t>(attention_layer) * S.kv_heads + static_cast<std::size_t>(kv_head)) * 2 +
          static_cast<std::size_t>(values)) *
         page_positions * Shape::attention_head_dim;
}

/// The pages of one sequence, in order: an array in device memory.
using PageTable = __nv_bfloat16* const*;

// The recurrent states of a sequence are float [DeltaNet layer][value head][128 of v][128 of k].
template <Shape S>
constexpr std::size_t recurrent_elements() {  // of a layer
  return static_cast<std::size_t>(S.delta_value_heads) * Shape::delta_head_dim * Shape::delta_head_dim;
}

// The convolution windows are float [DeltaNet layer][4][channels]: what the layer's first projection gave for
// position p lies in row p % 4, so that a token writes a row that no tap of it reads.
template <Shape S>
constexpr std::size_t window_elements() {  // of a layer
  return static_cast<std::size_t>(Shape::convolution_taps) * S.convolution_channels();
}

}  // namespace calla::cuda
