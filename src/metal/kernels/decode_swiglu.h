// The first half of an expert, by a SIMD-group: products with two matrices that share x.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/activations.h"
#include "metal/kernels/decode_product.h"

using namespace metal;

namespace calla_kernels {

/// Rows row .. row + ROWS - 1 of silu(gate n) * (up n), where n is u with the norm's scale. Every lane gets
/// them.
template <uint ROWS, uint R>
inline void swiglu_product(thread Sums<ROWS, R>& inner,
                           thread const Matrix& gate,
                           thread const Matrix& up,
                           uint row,
                           device const float* u,
                           thread const NormScales<R>& norm,
                           uint lane) {
  const uint chunks = Row<4, hidden>::chunks;
  Sums<2 * ROWS, R> sums;  // of gate, then of up
  clear(sums);
#pragma clang loop unroll(full)
  for (uint first = 0; first < chunks; first += 32) {
    const uint index = first + lane;
    if (first + 32 > chunks && index >= chunks) continue;
    Chunk<2 * ROWS> chunk;
#pragma clang loop unroll(full)
    for (uint i = 0; i < ROWS; ++i) {
      load<4, hidden>(chunk, i, gate, row + i, index);
      load<4, hidden>(chunk, ROWS + i, up, row + i, index);
    }
    Sums<2 * ROWS, R> parts;
    multiply<4, hidden>(parts, chunk, u, index);
    add(sums, parts);
  }
  add_lanes(sums);
#pragma clang loop unroll(full)
  for (uint i = 0; i < ROWS; ++i)
#pragma clang loop unroll(full)
    for (uint r = 0; r < R; ++r)
      inner.of[i][r] = silu(norm.of[r] * sums.of[i][r]) * (norm.of[r] * sums.of[ROWS + i][r]);
}

}  // namespace calla_kernels
