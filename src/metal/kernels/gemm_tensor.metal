// The products of prefill for GPUs with tensor units (M5): what gemm.metal and experts_prefill.metal have
// under other names, with the same arguments, but for the router, which stays exact. Operands are rounded to
// bfloat16: tensor_tile.h says what that costs.
//
//   gemm_tensor_project, gemm_tensor, gemm_tensor_add, shared_gate_up_tensor    64 rows a threadgroup
//   experts_gate_up_tensor, experts_down_rows_tensor                            32 rows
//
// 128 threads, 16 KB of threadgroup memory (12 KB of 32 rows); grids in prefill_arguments.h. 128 R FLOPs a
// column of the tile for 4 R + 36 bytes, W from memory once, x from caches. Live floats a thread: 32 sums of
// 64 rows, 16 of 32 rows. Bound by the tensor units or, as one step follows the other, by dequantising: about
// 80 instructions a thread for 32 columns.
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/products.h"
#include "metal/kernels/shape.h"
#include "metal/kernels/tensor_tile.h"

using namespace metal;
using namespace calla_kernels;

kernel void gemm_tensor_project(device const uint4* words0 [[buffer(0)]],  // [ends[0]][columns / 32]
                                device const ushort* scales0 [[buffer(1)]],
                                device const ushort* biases0 [[buffer(2)]],
                                device const uint4* words1
                                [[buffer(3)]],  // [ends[1] - ends[0]][columns / 32]
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
  using Tile = TensorTile<64>;
  TG_ARRAY(float4, memory, Tile::quads);
  const TilePlace at = {tile, thread_index, simd, lane};
  project_tile<Tile>(memory, {words0, scales0, biases0}, {words1, scales1, biases1},
                     {words2, scales2, biases2}, {words3, scales3, biases3}, x, out, args, at);
}

template <bool ADD>
kernel void gemm_tensor_product(device const uint4* words [[buffer(0)]],  // [outputs][columns / 32]
                                device const ushort* scales [[buffer(1)]],
                                device const ushort* biases [[buffer(2)]],
                                device const float* x [[buffer(3)]],  // [rows][columns]
                                device float* out [[buffer(4)]],      // [rows][outputs]
                                constant GemmArguments& args [[buffer(5)]],
                                uint3 tile [[threadgroup_position_in_grid]],
                                uint thread_index [[thread_index_in_threadgroup]],
                                uint simd [[simdgroup_index_in_threadgroup]],
                                uint lane [[thread_index_in_simdgroup]]) {
  using Tile = TensorTile<64>;
  TG_ARRAY(float4, memory, Tile::quads);
  const TilePlace at = {tile, thread_index, simd, lane};
  product_tile<Tile, ADD>(memory, {words, scales, biases}, x, out, args, at);
}
INSTANTIATE("gemm_tensor", gemm_tensor_product<false>)
INSTANTIATE("gemm_tensor_add", gemm_tensor_product<true>)

kernel void shared_gate_up_tensor(device const uint4* gate_words
                                  [[buffer(0)]],  // [shared_hidden][hidden / 32]
                                  device const ushort* gate_scales [[buffer(1)]],
                                  device const ushort* gate_biases [[buffer(2)]],
                                  device const uint4* up_words [[buffer(3)]],
                                  device const ushort* up_scales [[buffer(4)]],
                                  device const ushort* up_biases [[buffer(5)]],
                                  device const float* x [[buffer(6)]],  // [T][hidden]
                                  device float* inner [[buffer(7)]],    // [T][shared_hidden]
                                  constant RowsArguments& args [[buffer(8)]],
                                  uint3 tile [[threadgroup_position_in_grid]],
                                  uint thread_index [[thread_index_in_threadgroup]],
                                  uint simd [[simdgroup_index_in_threadgroup]],
                                  uint lane [[thread_index_in_simdgroup]]) {
  using Tile = TensorTile<64>;
  TG_ARRAY(float4, memory, Tile::quads);
  const TilePlace at = {tile, thread_index, simd, lane};
  shared_gate_up_tile<Tile>(memory, {gate_words, gate_scales, gate_biases}, {up_words, up_scales, up_biases},
                            x, inner, args, at);
}

kernel void experts_gate_up_tensor(device const uint4* gate_words
                                   [[buffer(0)]],  // [experts][expert_hidden][hidden / 32]
                                   device const ushort* gate_scales [[buffer(1)]],
                                   device const ushort* gate_biases [[buffer(2)]],
                                   device const uint4* up_words [[buffer(3)]],
                                   device const ushort* up_scales [[buffer(4)]],
                                   device const ushort* up_biases [[buffer(5)]],
                                   device const float* x [[buffer(6)]],       // [T][hidden]
                                   device const uint* pairs [[buffer(7)]],    // [8 T]
                                   device const Block* blocks [[buffer(8)]],  // [grid.x]
                                   device float* inner [[buffer(9)]],         // [8 T][expert_hidden]
                                   uint3 tile [[threadgroup_position_in_grid]],
                                   uint thread_index [[thread_index_in_threadgroup]],
                                   uint simd [[simdgroup_index_in_threadgroup]],
                                   uint lane [[thread_index_in_simdgroup]]) {
  using Tile = TensorTile<32>;
  TG_ARRAY(float4, memory, Tile::quads);
  const Block block = blocks[tile.x];
  if (block.rows == 0) return;
  const TilePlace at = {tile, thread_index, simd, lane};
  experts_gate_up_tile<Tile>(memory, {gate_words, gate_scales, gate_biases}, {up_words, up_scales, up_biases},
                             x, pairs, block, inner, at);
}

kernel void experts_down_rows_tensor(device const uint4* words
                                     [[buffer(0)]],  // [experts][hidden][expert_hidden / 32]
                                     device const ushort* scales [[buffer(1)]],
                                     device const ushort* biases [[buffer(2)]],
                                     device const float* inner [[buffer(3)]],   // [8 T][expert_hidden]
                                     device const uint* pairs [[buffer(4)]],    // [8 T]
                                     device const Block* blocks [[buffer(5)]],  // [grid.x]
                                     device float* pair_out [[buffer(6)]],      // [8 T][hidden]
                                     uint3 tile [[threadgroup_position_in_grid]],
                                     uint thread_index [[thread_index_in_threadgroup]],
                                     uint simd [[simdgroup_index_in_threadgroup]],
                                     uint lane [[thread_index_in_simdgroup]]) {
  using Tile = TensorTile<32>;
  TG_ARRAY(float4, memory, Tile::quads);
  const Block block = blocks[tile.x];
  if (block.rows == 0) return;
  const TilePlace at = {tile, thread_index, simd, lane};
  experts_down_tile<Tile>(memory, {words, scales, biases}, inner, pairs, block, pair_out, at);
}
