// What a threadgroup loads for its tile of a product x W^T: ROWS rows of x and 64 rows of W, the latter
// dequantised on their way into threadgroup memory. Shared by the dense and the grouped products, and by the
// two ways of multiplying: simd_tile.h and tensor_tile.h.
//
// 128 threads take 32 columns a step: of x 16 bytes of every 16th row each, of W 16 columns of one row. Quad
// is four elements as the tile holds them, float4 or bfloat4; strides count quads.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/bfloat16.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

enum : uint {
  step_columns = 32,
  step_quads = step_columns / 4,
};

/// A thread's share of loading x: 16 bytes of each 16th row.
template <uint ROWS>
struct TileRows {
  device const float4* x;
  uint places[ROWS / 16];  // in x, of its part of each row
};

/// The tile's rows `first` to `first` + `count` - 1 of x [..][columns]. Those behind are the last one again:
/// nobody stores their results.
template <uint ROWS>
inline void find_rows(thread TileRows<ROWS>& rows,
                      device const float* x,
                      uint first,
                      uint count,
                      uint columns,
                      uint thread_index) {
  rows.x = (device const float4*)x;
#pragma clang loop unroll(full)
  for (uint i = 0; i < ROWS / 16; ++i) {
    const uint row = first + min(thread_index / 8 + 16 * i, count - 1);
    rows.places[i] = row * (columns / 4) + thread_index % 8;
  }
}

/// The same of the rows of tokens: row i of the tile is that of pair pairs[i], whose token is pairs[i] / 8.
template <uint ROWS>
inline void gather_rows(thread TileRows<ROWS>& rows,
                        device const float* x,
                        device const uint* pairs,
                        uint count,
                        uint columns,
                        uint thread_index) {
  rows.x = (device const float4*)x;
#pragma clang loop unroll(full)
  for (uint i = 0; i < ROWS / 16; ++i) {
    const uint token = pairs[min(thread_index / 8 + 16 * i, count - 1)] / experts_per_token;
    rows.places[i] = token * (columns / 4) + thread_index % 8;
  }
}

template <uint ROWS, class Quad>
inline void load_rows(
    threadgroup Quad* tile, uint stride, thread const TileRows<ROWS>& rows, uint step, uint thread_index) {
  threadgroup Quad* to = tile + thread_index / step_quads * stride + thread_index % step_quads;
#pragma clang loop unroll(full)
  for (uint i = 0; i < ROWS / 16; ++i) to[16 * i * stride] = Quad(rows.x[rows.places[i] + step * step_quads]);
}

/// A thread's share of loading W: 16 columns of a step, of row thread_index / 2 of the tile.
struct WeightRow {
  device const uint* words;  // of its first step
  device const ushort* scales;
  device const ushort* biases;
};

/// `row`: of the matrix, or of the stack of them.
template <uint BITS>
inline WeightRow weight_row(Matrix matrix, uint row, uint columns, uint thread_index) {
  return {(device const uint*)matrix.words + row * (columns / 32 * BITS) + thread_index % 2 * (BITS / 2),
          matrix.scales + row * (columns / group), matrix.biases + row * (columns / group)};
}

/// scale * code + bias, rounded once to float32.
template <uint BITS, class Quad>
inline void load_weights(
    threadgroup Quad* tile, uint stride, thread const WeightRow& row, uint step, uint thread_index) {
  const float4 scales = bf16_to_float(row.scales[step / 2]) * Codes<BITS>::factors();
  const float4 bias = float4(bf16_to_float(row.biases[step / 2]));
  threadgroup Quad* to = tile + thread_index / 2 * stride + thread_index % 2 * 4;
  if (BITS == 4) {
    const uint2 words = *(device const uint2*)(row.words + step * 4);
    to[0] = Quad(fma(nibbles(words.x), scales, bias));
    to[1] = Quad(fma(nibbles(words.x >> 16), scales, bias));
    to[2] = Quad(fma(nibbles(words.y), scales, bias));
    to[3] = Quad(fma(nibbles(words.y >> 16), scales, bias));
  } else {
    const uint4 words = *(device const uint4*)(row.words + step * 8);
    to[0] = Quad(fma(bytes(words.x), scales, bias));
    to[1] = Quad(fma(bytes(words.y), scales, bias));
    to[2] = Quad(fma(bytes(words.z), scales, bias));
    to[3] = Quad(fma(bytes(words.w), scales, bias));
  }
}

}  // namespace calla_kernels
