// A threadgroup's tile of a product x W^T: ROWS rows of x times 64 rows of W, which is dequantised on its way
// into threadgroup memory. Used by the dense and by the grouped products.
//
// Four SIMD-groups share the tile as 2 x 2 (16 rows: 1 x 4) and keep their part of the sums in 8 x 8 matrices
// of float32: 32 floats a lane of 64 rows, 16 of 32 rows, 8 of 16 rows, and 10 of operands. A step takes 32
// columns of x and W, as floats, in rows that are padded by 16 bytes; at most 18 KB. A result is summed in
// the order of the columns, by eights, whatever the tile: its bits depend on its row of x and of W alone.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/bfloat16.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

enum : uint {
  tile_depth = 32,               // columns of a step
  tile_stride = tile_depth + 4,  // floats from row to row of an operand
  result_stride = 64 + 4,        // floats from row to row of the results, which take the operands' place
};

/// Floats of threadgroup memory that a tile takes: x first, then W; behind the product the results.
template <uint ROWS>
struct TileMemory {
  enum : uint { floats = (ROWS + gemm_columns) * tile_stride };
  static_assert(floats >= ROWS * result_stride, "the results have room");
};

/// How the SIMD-groups share the tile.
template <uint ROWS>
struct TileParts {
  enum : uint {
    rows = ROWS == 16 ? 16 : ROWS / 2,  // of a SIMD-group
    columns = ROWS == 16 ? 16 : 32,
    across = gemm_columns / columns,
    row_matrices = rows / 8,
    column_matrices = columns / 8,
  };
};

/// A SIMD-group's part of the sums.
template <uint ROWS>
struct TileSums {
  simdgroup_float8x8 of[TileParts<ROWS>::row_matrices][TileParts<ROWS>::column_matrices];
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
  for (uint i = 0; i < ROWS / 16; ++i) {
    const uint token = pairs[min(thread_index / 8 + 16 * i, count - 1)] / experts_per_token;
    rows.places[i] = token * (columns / 4) + thread_index % 8;
  }
}

template <uint ROWS>
inline void load_rows(threadgroup float* tile,
                      thread const TileRows<ROWS>& rows,
                      uint step,
                      uint thread_index) {
  threadgroup float* to = tile + thread_index / 8 * tile_stride + thread_index % 8 * 4;
  for (uint i = 0; i < ROWS / 16; ++i)
    *(threadgroup float4*)(to + 16 * i * tile_stride) = rows.x[rows.places[i] + step * (tile_depth / 4)];
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

/// scale * code + bias, rounded once.
template <uint BITS>
inline void load_weights(threadgroup float* tile, thread const WeightRow& row, uint step, uint thread_index) {
  const float4 scales = bf16_to_float(row.scales[step / 2]) * Codes<BITS>::factors();
  const float4 bias = float4(bf16_to_float(row.biases[step / 2]));
  threadgroup float4* to =
      (threadgroup float4*)(tile + thread_index / 2 * tile_stride + thread_index % 2 * 16);
  if (BITS == 4) {
    const uint2 words = *(device const uint2*)(row.words + step * 4);
    to[0] = fma(nibbles(words.x), scales, bias);
    to[1] = fma(nibbles(words.x >> 16), scales, bias);
    to[2] = fma(nibbles(words.y), scales, bias);
    to[3] = fma(nibbles(words.y >> 16), scales, bias);
  } else {
    const uint4 words = *(device const uint4*)(row.words + step * 8);
    to[0] = fma(bytes(words.x), scales, bias);
    to[1] = fma(bytes(words.y), scales, bias);
    to[2] = fma(bytes(words.z), scales, bias);
    to[3] = fma(bytes(words.w), scales, bias);
  }
}

/// Adds a step's products to the SIMD-group's sums.
template <uint ROWS>
inline void multiply_step(thread TileSums<ROWS>& sums, threadgroup const float* tile, uint simd) {
  using Parts = TileParts<ROWS>;
  threadgroup const float* x = tile + simd / Parts::across * Parts::rows * tile_stride;
  threadgroup const float* w = tile + (ROWS + simd % Parts::across * Parts::columns) * tile_stride;
#pragma clang loop unroll(full)
  for (uint k = 0; k < tile_depth; k += 8) {
    simdgroup_float8x8 right[Parts::column_matrices];
#pragma clang loop unroll(full)
    for (uint c = 0; c < Parts::column_matrices; ++c)
      simdgroup_load(right[c], w + c * 8 * tile_stride + k, tile_stride, ulong2(0UL), true);
#pragma clang loop unroll(full)
    for (uint r = 0; r < Parts::row_matrices; ++r) {
      simdgroup_float8x8 left;
      simdgroup_load(left, x + r * 8 * tile_stride + k, tile_stride);
#pragma clang loop unroll(full)
      for (uint c = 0; c < Parts::column_matrices; ++c)
        simdgroup_multiply_accumulate(sums.of[r][c], left, right[c], sums.of[r][c]);
    }
  }
}

/// The tile's product over all columns. Its results, [ROWS][result_stride], are in `tile` when it returns,
/// but for those of SIMD-groups whose rows are all behind the `count` first.
template <uint ROWS, uint BITS>
inline void tile_product(threadgroup float* tile,
                         thread const TileRows<ROWS>& rows,
                         thread const WeightRow& weights,
                         uint columns,
                         uint count,
                         uint thread_index,
                         uint simd) {
  using Parts = TileParts<ROWS>;
  TileSums<ROWS> sums;
#pragma clang loop unroll(full)
  for (uint r = 0; r < Parts::row_matrices; ++r) {
#pragma clang loop unroll(full)
    for (uint c = 0; c < Parts::column_matrices; ++c)
      sums.of[r][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }

  const uint first_row = simd / Parts::across * Parts::rows;
  const uint first_column = simd % Parts::across * Parts::columns;
  const bool busy = first_row < count;
  for (uint step = 0; step < columns / tile_depth; ++step) {
    load_rows<ROWS>(tile, rows, step, thread_index);
    load_weights<BITS>(tile + ROWS * tile_stride, weights, step, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (busy) multiply_step<ROWS>(sums, tile, simd);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  if (busy) {
    threadgroup float* to = tile + first_row * result_stride + first_column;
#pragma clang loop unroll(full)
    for (uint r = 0; r < Parts::row_matrices; ++r) {
#pragma clang loop unroll(full)
      for (uint c = 0; c < Parts::column_matrices; ++c)
        simdgroup_store(sums.of[r][c], to + r * 8 * result_stride + c * 8, result_stride);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

}  // namespace calla_kernels
