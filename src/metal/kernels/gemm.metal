// Products of prefill: out [T][outputs] = x [T][columns] W^T, W of 4 or 8 bits, columns a multiple of 64.
//
//   gemm_project  up to four matrices side by side, those of a mixer's first product
//   gemm          one matrix
//   gemm_add      one matrix, added to out: the residual stream
//   gemm_router   the router and the shared expert's gate behind it, 8 bits
//
// A threadgroup of 128 threads does a tile of R rows and 64 outputs (gemm_tile.h); grids in
// prefill_arguments.h, tiles of rows first, so that neighbours share the tile of W. Exact products of
// float32 operands, summed in float32. 2 * 64 * R FLOPs a column of the tile for 4 R + 36 bytes, W from
// memory once, x from caches. Live floats a thread: 32 sums and 10 operands of 64 rows, half the sums of 32.
// Bound by the SIMD-groups' multipliers: dequantising is about 80 of 1,350 cycles a step of 64 rows, and the
// operands' loads from threadgroup memory take 0.4 of the multipliers' time (0.6 of 32 rows).
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/gemm_tile.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

namespace {

/// Writes the tile's results, or adds them, a SIMD-group 32 neighbours at a time.
template <bool ADD>
inline void store_tile(device float* out,
                       threadgroup const float* results,
                       uint first_row,
                       uint rows,
                       uint first_output,
                       uint outputs,
                       uint thread_index) {
  const uint column = first_output + thread_index % gemm_columns;
  if (column >= outputs) return;
  for (uint row = thread_index / gemm_columns; row < rows; row += gemm_threads / gemm_columns) {
    const float value = results[row * result_stride + thread_index % gemm_columns];
    device float* to = out + (first_row + row) * outputs + column;
    *to = ADD ? *to + value : value;
  }
}

}  // namespace

template <uint ROWS>
kernel void gemm_project(device const uint4* words0 [[buffer(0)]],  // [ends[0]][columns / 32]
                         device const ushort* scales0 [[buffer(1)]],
                         device const ushort* biases0 [[buffer(2)]],
                         device const uint4* words1 [[buffer(3)]],  // [ends[1] - ends[0]][columns / 32]
                         device const ushort* scales1 [[buffer(4)]],
                         device const ushort* biases1 [[buffer(5)]],
                         device const uint4* words2 [[buffer(6)]],
                         device const ushort* scales2 [[buffer(7)]],
                         device const ushort* biases2 [[buffer(8)]],
                         device const uint4* words3 [[buffer(9)]],
                         device const ushort* scales3 [[buffer(10)]],
                         device const ushort* biases3 [[buffer(11)]],
                         device const float* x [[buffer(12)]],  // [rows][columns]
                         device float* out [[buffer(13)]],      // [rows][ends[3]]
                         constant GemmProjectArguments& args [[buffer(14)]],
                         uint3 at [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]]) {
  TG_ARRAY(float, tile, TileMemory<ROWS>::floats);
  const uint first_row = at.x * ROWS;
  const uint rows = min(ROWS, args.rows - first_row);
  const uint first_output = at.y * gemm_columns;
  const uint outputs = args.ends[3];
  const uint columns = args.columns;

  TileRows<ROWS> tile_rows;
  find_rows<ROWS>(tile_rows, x, first_row, rows, columns, thread_index);
  const uint output = min(first_output + thread_index / 2, outputs - 1);
  WeightRow weights;
  if (output < args.ends[0])
    weights = weight_row<4>({words0, scales0, biases0}, output, columns, thread_index);
  else if (output < args.ends[1])
    weights = weight_row<4>({words1, scales1, biases1}, output - args.ends[0], columns, thread_index);
  else if (output < args.ends[2])
    weights = weight_row<4>({words2, scales2, biases2}, output - args.ends[1], columns, thread_index);
  else
    weights = weight_row<4>({words3, scales3, biases3}, output - args.ends[2], columns, thread_index);
  tile_product<ROWS, 4>(tile, tile_rows, weights, columns, rows, thread_index, simd);
  store_tile<false>(out, tile, first_row, rows, first_output, outputs, thread_index);
}
INSTANTIATE("gemm_project_32", gemm_project<32>)
INSTANTIATE("gemm_project_64", gemm_project<64>)

template <uint ROWS, bool ADD>
kernel void gemm(device const uint4* words [[buffer(0)]],  // [outputs][columns / 32]
                 device const ushort* scales [[buffer(1)]],
                 device const ushort* biases [[buffer(2)]],
                 device const float* x [[buffer(3)]],  // [rows][columns]
                 device float* out [[buffer(4)]],      // [rows][outputs]
                 constant GemmArguments& args [[buffer(5)]],
                 uint3 at [[threadgroup_position_in_grid]],
                 uint thread_index [[thread_index_in_threadgroup]],
                 uint simd [[simdgroup_index_in_threadgroup]]) {
  TG_ARRAY(float, tile, TileMemory<ROWS>::floats);
  const uint first_row = at.x * ROWS;
  const uint rows = min(ROWS, args.rows - first_row);
  const uint first_output = at.y * gemm_columns;

  TileRows<ROWS> tile_rows;
  find_rows<ROWS>(tile_rows, x, first_row, rows, args.columns, thread_index);
  const uint output = min(first_output + thread_index / 2, args.outputs - 1);
  const WeightRow weights = weight_row<4>({words, scales, biases}, output, args.columns, thread_index);
  tile_product<ROWS, 4>(tile, tile_rows, weights, args.columns, rows, thread_index, simd);
  store_tile<ADD>(out, tile, first_row, rows, first_output, args.outputs, thread_index);
}
INSTANTIATE("gemm_32", gemm<32, false>)
INSTANTIATE("gemm_64", gemm<64, false>)
INSTANTIATE("gemm_add_32", gemm<32, true>)
INSTANTIATE("gemm_add_64", gemm<64, true>)

kernel void gemm_router(device const uint4* router_words [[buffer(0)]],  // [experts][hidden / 16]
                        device const ushort* router_scales [[buffer(1)]],
                        device const ushort* router_biases [[buffer(2)]],
                        device const uint4* gate_words [[buffer(3)]],  // [1][hidden / 16]
                        device const ushort* gate_scales [[buffer(4)]],
                        device const ushort* gate_biases [[buffer(5)]],
                        device const float* x [[buffer(6)]],  // [rows][hidden]
                        device float* logits [[buffer(7)]],   // [rows][experts + 1]
                        constant RowsArguments& args [[buffer(8)]],
                        uint3 at [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
  TG_ARRAY(float, tile, TileMemory<32>::floats);
  const uint first_row = at.x * 32;
  const uint rows = min(32U, args.rows - first_row);
  const uint first_output = at.y * gemm_columns;

  TileRows<32> tile_rows;
  find_rows<32>(tile_rows, x, first_row, rows, hidden, thread_index);
  const uint output = first_output + thread_index / 2;
  WeightRow weights;
  if (output < experts)
    weights = weight_row<8>({router_words, router_scales, router_biases}, output, hidden, thread_index);
  else
    weights = weight_row<8>({gate_words, gate_scales, gate_biases}, 0, hidden, thread_index);
  tile_product<32, 8>(tile, tile_rows, weights, hidden, rows, thread_index, simd);
  store_tile<false>(logits, tile, first_row, rows, first_output, experts + 1, thread_index);
}
