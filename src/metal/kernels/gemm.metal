// Products of prefill: out [T][outputs] = x [T][columns] W^T, W of 4 or 8 bits, columns a multiple of 64.
//
//   gemm_project  up to four matrices side by side, those of a mixer's first product
//   gemm          one matrix
//   gemm_add      one matrix, added to out: the residual stream
//   gemm_router   the router and the shared expert's gate behind it, 8 bits
//
// A threadgroup of 128 threads does a tile of R rows and 64 outputs (products.h, simd_tile.h); grids in
// prefill_arguments.h, tiles of rows first, so that neighbours share the tile of W. 128 R FLOPs a column of
// the tile for 4 R + 36 bytes, W from memory once, x from caches. Live floats a thread: 32 sums and 10
// operands of 64 rows, half the sums of 32. Bound by the SIMD-groups' multipliers: dequantising is about 80
// of 1,350 cycles a step of 64 rows, and the operands' loads from threadgroup memory take 0.4 of the
// multipliers' time (0.6 of 32 rows).
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/gemm_tile.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/products.h"
#include "metal/kernels/shape.h"
#include "metal/kernels/simd_tile.h"

using namespace metal;
using namespace calla_kernels;

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
                         uint3 tile [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]]) {
  using Tile = SimdTile<ROWS, 4>;
  TG_ARRAY(float4, memory, Tile::quads);
  const TilePlace at = {tile, thread_index, simd, lane};
  project_tile<Tile>(memory, {words0, scales0, biases0}, {words1, scales1, biases1},
                     {words2, scales2, biases2}, {words3, scales3, biases3}, x, out, args, at);
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
                 uint3 tile [[threadgroup_position_in_grid]],
                 uint thread_index [[thread_index_in_threadgroup]],
                 uint simd [[simdgroup_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]]) {
  using Tile = SimdTile<ROWS, 4>;
  TG_ARRAY(float4, memory, Tile::quads);
  const TilePlace at = {tile, thread_index, simd, lane};
  product_tile<Tile, ADD>(memory, {words, scales, biases}, x, out, args, at);
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
                        uint3 tile [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  using Tile = SimdTile<32, 8>;
  TG_ARRAY(float4, memory, Tile::quads);
  const TilePlace at = {tile, thread_index, simd, lane};
  const uint first_row = tile.x * Tile::rows;
  const uint count = min(uint(Tile::rows), args.rows - first_row);
  TileRows<Tile::rows> rows;
  find_rows(rows, x, first_row, count, hidden, thread_index);
  const uint output = tile.y * gemm_columns + thread_index / 2;
  WeightRow weights;
  if (output < experts)
    weights = weight_row<8>({router_words, router_scales, router_biases}, output, hidden, thread_index);
  else
    weights = weight_row<8>({gate_words, gate_scales, gate_biases}, 0, hidden, thread_index);
  Tile::product(memory, rows, weights, hidden, count, thread_index, simd);
  store_tile<Tile, false>(logits + first_row * (experts + 1), memory, count, experts + 1, at);
}
