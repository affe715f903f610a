// A tile's product by matrices of SIMD-groups, for all of Apple's GPUs. Exact products of float32 operands,
// summed in float32.
//
// Four SIMD-groups share the tile as 2 x 2 (of 16 rows: 1 x 4) and keep their part of the sums in 8 x 8
// matrices: 32 floats a lane of 64 rows, 16 of 32 rows, 8 of 16 rows, and up to 10 of operands. The tile
// holds 32 columns of x and W as floats, in rows that are padded by 16 bytes: 18 KB of 64 rows, 14 KB of 32.
// A result is summed in the order of the columns, by eights, whatever the tile: its bits depend on its row of
// x and on its row of W alone.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/gemm_tile.h"
#include "metal/kernels/prefill_arguments.h"

using namespace metal;

namespace calla_kernels {

/// A SIMD-group's part of the sums.
template <uint DOWN, uint ACROSS>
struct TileSums {
  simdgroup_float8x8 of[DOWN][ACROSS];
};

template <uint ROWS, uint BITS>
struct SimdTile {
  enum : uint {
    rows = ROWS,
    bits = BITS,
    operand_quads = step_quads + 1,      // from row to row of an operand
    operand_stride = 4 * operand_quads,  // the same in floats
    result_stride = gemm_columns + 4,    // floats from row to row of the results
    quads = (ROWS + gemm_columns) *
            operand_quads,  // of threadgroup memory: x, then W; behind the product the results

    // A SIMD-group's part.
    part_rows = ROWS == 16 ? 16 : ROWS / 2,
    part_columns = ROWS == 16 ? 16 : 32,
    parts_across = gemm_columns / part_columns,
    down = part_rows / 8,
    across = part_columns / 8,
  };
  static_assert(4 * quads >= ROWS * result_stride, "the results have room");
  using Sums = TileSums<down, across>;

  /// The product over all columns. The results, [ROWS][result_stride], are in `memory` when it returns, but
  /// for those of SIMD-groups whose rows are all behind the `count` first.
  static inline void product(threadgroup float4* memory,
                             thread const TileRows<ROWS>& tile_rows,
                             thread const WeightRow& weights,
                             uint columns,
                             uint count,
                             uint thread_index,
                             uint simd) {
    Sums sums;
#pragma clang loop unroll(full)
    for (uint r = 0; r < down; ++r) {
#pragma clang loop unroll(full)
      for (uint c = 0; c < across; ++c) sums.of[r][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }

    const uint first_row = simd / parts_across * part_rows;
    const uint first_column = simd % parts_across * part_columns;
    const bool busy = first_row < count;
    for (uint step = 0; step < columns / step_columns; ++step) {
      load_rows<ROWS>(memory, operand_quads, tile_rows, step, thread_index);
      load_weights<BITS>(memory + ROWS * operand_quads, operand_quads, weights, step, thread_index);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      threadgroup const float* x = (threadgroup const float*)memory + first_row * operand_stride;
      threadgroup const float* w = (threadgroup const float*)memory + (ROWS + first_column) * operand_stride;
      if (busy) multiply_step(sums, x, w);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    if (busy) {
      threadgroup float* to = (threadgroup float*)memory + first_row * result_stride + first_column;
#pragma clang loop unroll(full)
      for (uint r = 0; r < down; ++r) {
#pragma clang loop unroll(full)
        for (uint c = 0; c < across; ++c)
          simdgroup_store(sums.of[r][c], to + r * 8 * result_stride + c * 8, result_stride);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

 private:
  /// Adds a step's products.
  static inline void multiply_step(thread Sums& sums,
                                   threadgroup const float* x,
                                   threadgroup const float* w) {
#pragma clang loop unroll(full)
    for (uint k = 0; k < step_columns; k += 8) {
      simdgroup_float8x8 right[across];
#pragma clang loop unroll(full)
      for (uint c = 0; c < across; ++c)
        simdgroup_load(right[c], w + c * 8 * operand_stride + k, operand_stride, ulong2(0UL), true);
#pragma clang loop unroll(full)
      for (uint r = 0; r < down; ++r) {
        simdgroup_float8x8 left;
        simdgroup_load(left, x + r * 8 * operand_stride + k, operand_stride);
#pragma clang loop unroll(full)
        for (uint c = 0; c < across; ++c)
          simdgroup_multiply_accumulate(sums.of[r][c], left, right[c], sums.of[r][c]);
      }
    }
  }
};

}  // namespace calla_kernels
