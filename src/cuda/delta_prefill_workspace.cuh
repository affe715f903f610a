// What the first kernel of DeltaNet prefill leaves for the second: every operand as the fragments of its
// warps, so that the second reads each with one coalesced load a lane and shares none of them through shared
// memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/delta_prefill.h"

namespace calla::cuda {

// nvcc cannot name a Shape among a kernel's template arguments, so that the kernels take their extents
// singly.
template <int key_heads, int value_heads>
inline constexpr int delta_channels = (2 * key_heads + value_heads) * Shape::delta_head_dim;  // q | k | v

/// The columns of V that a block of the second kernel has.
inline constexpr int delta_columns = 32;
inline constexpr int delta_parts = Shape::delta_head_dim / delta_columns;

template <int key_heads, int value_heads>
struct DeltaWorkspace {
  static constexpr int tile = delta_chunk * Shape::delta_head_dim / 8;  // in uint4

  uint4* q;  // [chunk][key head][4 tiles of 16 tokens][8 steps of 16 dims][32 lanes]: A fragments of Q
  uint4* k;  // [chunk][key head][8 tiles of 16 dims][4 steps of 16 tokens][32]: A fragments of K^T
  uint4* w;  // [chunk][value head][4 tiles of 16 tokens][8 steps of 16 dims][32]: A fragments of W
  uint4* u;  // [chunk][value head][4 parts of 32 columns][4 tiles of 16 tokens][2 pairs of 8 columns][32]:
             // accumulators of U0, half
  uint4* p;  // [chunk][value head][4 tiles of 16 tokens][4 steps of 16 tokens][32]: A fragments of P
  float* decays;  // [chunk][value head][2][64]: e^G, e^(G_C - G)

  DeltaWorkspace(std::byte* memory, int chunks) {
    const std::size_t keys = static_cast<std::size_t>(chunks) * key_heads;
    const std::size_t values = static_cast<std::size_t>(chunks) * value_heads;
    q = reinterpret_cast<uint4*>(memory);
    k = q + keys * tile;
    w = k + keys * tile;
    u = w + values * tile;
    p = u + values * tile;
    decays = reinterpret_cast<float*>(p + values * tile / 2);
  }
};

/// Where the columns of V lie in the products: of each 32 columns, column 8 t + 2 n + e is column 2 t + e of
/// tile n, so that a lane's accumulators of four tiles are eight neighbours in memory.
__host__ __device__ constexpr int delta_value_place(int column) {
  return column / 32 * 32 + column % 8 / 2 * 8 + column % 32 / 8 * 2 + column % 2;
}

}  // namespace calla::cuda
