// What a threadgroup of a product does, for either way of multiplying: Tile is SimdTile or TensorTile.
// `memory`: Tile::quads of threadgroup memory.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/activations.h"
#include "metal/kernels/affine.h"
#include "metal/kernels/gemm_tile.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

/// Where a thread is.
struct TilePlace {
  uint3 tile;  // threadgroup: tile of rows, or block; tile of outputs
  uint thread_index;
  uint simd;
  uint lane;
};

/// Writes the tile's results, or adds them, a SIMD-group 32 neighbours at a time. `out`: of the tile's first
/// row.
template <class Tile, bool ADD>
inline void store_tile(device float* out,
                       threadgroup const float4* memory,
                       uint rows,
                       uint outputs,
                       thread const TilePlace& at) {
  const uint own = at.thread_index % gemm_columns;
  const uint column = at.tile.y * gemm_columns + own;
  if (column >= outputs) return;
  for (uint row = at.thread_index / gemm_columns; row < rows; row += gemm_threads / gemm_columns) {
    const float value = ((threadgroup const float*)memory)[row * Tile::result_stride + own];
    device float* to = out + row * outputs + column;
    *to = ADD ? *to + value : value;
  }
}

/// silu(gate) * up of the tile's results, a SIMD-group a row at a time. `inner`: of the tile's first row and
/// output.
template <class Tile>
inline void store_inner(device float* inner,
                        threadgroup const float4* memory,
                        uint rows,
                        uint width,
                        thread const TilePlace& at) {
  for (uint row = at.simd; row < rows; row += gemm_threads / 32) {
    threadgroup const float* from = (threadgroup const float*)memory + row * Tile::result_stride + at.lane;
    inner[row * width + at.lane] = silu(from[0]) * from[gate_up_columns];
  }
}

/// The thread's row of a tile of 32 rows of gate and, behind them, the same rows of up. `first`: of the tile,
/// in the stack.
inline WeightRow gate_up_row(Matrix gate, Matrix up, uint first, uint thread_index) {
  const uint row = thread_index / 2;
  if (row < gate_up_columns) return weight_row<4>(gate, first + row, hidden, thread_index);
  return weight_row<4>(up, first + row - gate_up_columns, hidden, thread_index);
}

/// out [rows][ends[3]] = x [rows][columns] of four matrices side by side.
template <class Tile>
inline void project_tile(threadgroup float4* memory,
                         Matrix w0,
                         Matrix w1,
                         Matrix w2,
                         Matrix w3,
                         device const float* x,
                         device float* out,
                         constant GemmProjectArguments& args,
                         thread const TilePlace& at) {
  const uint first_row = at.tile.x * Tile::rows;
  const uint count = min(uint(Tile::rows), args.rows - first_row);
  const uint outputs = args.ends[3];
  const uint columns = args.columns;
  TileRows<Tile::rows> rows;
  find_rows(rows, x, first_row, count, columns, at.thread_index);

  const uint output = min(at.tile.y * gemm_columns + at.thread_index / 2, outputs - 1);
  WeightRow weights;
  if (output < args.ends[0])
    weights = weight_row<4>(w0, output, columns, at.thread_index);
  else if (output < args.ends[1])
    weights = weight_row<4>(w1, output - args.ends[0], columns, at.thread_index);
  else if (output < args.ends[2])
    weights = weight_row<4>(w2, output - args.ends[1], columns, at.thread_index);
  else
    weights = weight_row<4>(w3, output - args.ends[2], columns, at.thread_index);
  Tile::product(memory, rows, weights, columns, count, at.thread_index, at.simd);
  store_tile<Tile, false>(out + first_row * outputs, memory, count, outputs, at);
}

/// out [rows][outputs] = x [rows][columns] W^T, or += it.
template <class Tile, bool ADD>
inline void product_tile(threadgroup float4* memory,
                         Matrix w,
                         device const float* x,
                         device float* out,
                         constant GemmArguments& args,
                         thread const TilePlace& at) {
  const uint first_row = at.tile.x * Tile::rows;
  const uint count = min(uint(Tile::rows), args.rows - first_row);
  TileRows<Tile::rows> rows;
  find_rows(rows, x, first_row, count, args.columns, at.thread_index);
  const uint output = min(at.tile.y * gemm_columns + at.thread_index / 2, args.outputs - 1);
  const WeightRow weights = weight_row<4>(w, output, args.columns, at.thread_index);
  Tile::product(memory, rows, weights, args.columns, count, at.thread_index, at.simd);
  store_tile<Tile, ADD>(out + first_row * args.outputs, memory, count, args.outputs, at);
}

/// inner [rows][shared_hidden] = silu(x G^T) * (x U^T) of the shared expert.
template <class Tile>
inline void shared_gate_up_tile(threadgroup float4* memory,
                                Matrix gate,
                                Matrix up,
                                device const float* x,
                                device float* inner,
                                constant RowsArguments& args,
                                thread const TilePlace& at) {
  const uint first_row = at.tile.x * Tile::rows;
  const uint first_output = at.tile.y * gate_up_columns;
  const uint count = min(uint(Tile::rows), args.rows - first_row);
  TileRows<Tile::rows> rows;
  find_rows(rows, x, first_row, count, hidden, at.thread_index);
  const WeightRow weights = gate_up_row(gate, up, first_output, at.thread_index);
  Tile::product(memory, rows, weights, hidden, count, at.thread_index, at.simd);
  store_inner<Tile>(inner + first_row * shared_hidden + first_output, memory, count, shared_hidden, at);
}

/// The same of a block of an expert's pairs, whose tokens' rows are gathered: inner [pair, sorted]
/// [expert_hidden].
template <class Tile>
inline void experts_gate_up_tile(threadgroup float4* memory,
                                 Matrix gate,
                                 Matrix up,
                                 device const float* x,
                                 device const uint* pairs,
                                 Block block,
                                 device float* inner,
                                 thread const TilePlace& at) {
  const uint first_output = at.tile.y * gate_up_columns;
  TileRows<Tile::rows> rows;
  gather_rows(rows, x, pairs + block.first, block.rows, hidden, at.thread_index);
  const WeightRow weights =
      gate_up_row(gate, up, block.expert * expert_hidden + first_output, at.thread_index);
  Tile::product(memory, rows, weights, hidden, block.rows, at.thread_index, at.simd);
  store_inner<Tile>(inner + block.first * expert_hidden + first_output, memory, block.rows, expert_hidden,
                    at);
}

/// pair_out [pair][hidden] = inner [pair, sorted][expert_hidden] D^T of a block.
template <class Tile>
inline void experts_down_tile(threadgroup float4* memory,
                              Matrix down,
                              device const float* inner,
                              device const uint* pairs,
                              Block block,
                              device float* pair_out,
                              thread const TilePlace& at) {
  const uint first_output = at.tile.y * gemm_columns;
  TileRows<Tile::rows> rows;
  find_rows(rows, inner, block.first, block.rows, expert_hidden, at.thread_index);
  const WeightRow weights = weight_row<4>(down, block.expert * hidden + first_output + at.thread_index / 2,
                                          expert_hidden, at.thread_index);
  Tile::product(memory, rows, weights, expert_hidden, block.rows, at.thread_index, at.simd);
  const uint column = at.thread_index % gemm_columns;
  for (uint row = at.thread_index / gemm_columns; row < block.rows; row += gemm_threads / gemm_columns)
    pair_out[pairs[block.first + row] * hidden + first_output + column] =
        ((threadgroup const float*)memory)[row * Tile::result_stride + column];
}

}  // namespace calla_kernels
