// The mixture of experts in prefill, between the routing and the residual stream.
//
//   inner[s] = silu(x[t] G^T) * (x[t] U^T)    s-th of the sorted pairs, t its token, G and U of its expert
//   pair_out[p] = inner[s] D^T                p = pairs[s]
//   h[t] += sum_i share[t][i] pair_out[8 t + i] + shared share[t] * shared_out[t],  i = 0 .. 7
//
// The grouped products take a block of the map (route.metal) a threadgroup and tile of outputs, blocks first,
// so that the blocks of one expert share its weights; the grid has room for all blocks there may be, and a
// block without rows ends at once. Tiles and arithmetic are those of products.h and simd_tile.h, which say
// what lives in registers: a block has up to R rows and 64 rows of W, of gate and up 32 each, one behind the
// other. Exact products of float32 operands, summed in float32; silu to a few ulp.
//
// Of the 35B an expert's weights are 1.8 MB, read from memory once where one block has all of its rows; x and
// inner come from caches, 8 KB and 2 KB a row for each tile of outputs. 6.3 MFLOP a row and expert. Bound by
// the SIMD-groups' multipliers where experts have more than about 16 rows, below by memory.
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/products.h"
#include "metal/kernels/row_norm.h"
#include "metal/kernels/shape.h"
#include "metal/kernels/simd_tile.h"

using namespace metal;
using namespace calla_kernels;

template <uint ROWS>
kernel void experts_gate_up(device const uint4* gate_words
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
  using Tile = SimdTile<ROWS, 4>;
  TG_ARRAY(float4, memory, Tile::quads);
  const Block block = blocks[tile.x];
  if (block.rows == 0) return;
  const TilePlace at = {tile, thread_index, simd, lane};
  experts_gate_up_tile<Tile>(memory, {gate_words, gate_scales, gate_biases}, {up_words, up_scales, up_biases},
                             x, pairs, block, inner, at);
}
INSTANTIATE("experts_gate_up_16", experts_gate_up<16>)
INSTANTIATE("experts_gate_up_32", experts_gate_up<32>)

template <uint ROWS>
kernel void experts_down_rows(device const uint4* words
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
  using Tile = SimdTile<ROWS, 4>;
  TG_ARRAY(float4, memory, Tile::quads);
  const Block block = blocks[tile.x];
  if (block.rows == 0) return;
  const TilePlace at = {tile, thread_index, simd, lane};
  experts_down_tile<Tile>(memory, {words, scales, biases}, inner, pairs, block, pair_out, at);
}
INSTANTIATE("experts_down_rows_16", experts_down_rows<16>)
INSTANTIATE("experts_down_rows_32", experts_down_rows<32>)

// The shared expert's, of all rows; its down product is gemm_R.
template <uint ROWS>
kernel void shared_gate_up(device const uint4* gate_words [[buffer(0)]],  // [shared_hidden][hidden / 32]
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
  using Tile = SimdTile<ROWS, 4>;
  TG_ARRAY(float4, memory, Tile::quads);
  const TilePlace at = {tile, thread_index, simd, lane};
  shared_gate_up_tile<Tile>(memory, {gate_words, gate_scales, gate_biases}, {up_words, up_scales, up_biases},
                            x, inner, args, at);
}
INSTANTIATE("shared_gate_up_32", shared_gate_up<32>)
INSTANTIATE("shared_gate_up_64", shared_gate_up<64>)

// Puts a row together, adds it to the residual stream, and normalises that for the next layer: x = h *
// rsqrt(mean h^2 + 1e-6) * gain. A threadgroup of 256 threads a row. Moves 52 bytes a column; live floats a
// thread: 8 shares and 12. Bound by memory, or by the caches that hold pair_out.
kernel void combine(device const float4* pair_out [[buffer(0)]],    // [T][8][hidden]
                    device const float4* shared_out [[buffer(1)]],  // [T][hidden]
                    device const Route* routes [[buffer(2)]],       // [T]
                    device float4* h [[buffer(3)]],                 // [T][hidden]
                    device const float4* gain [[buffer(4)]],        // [hidden]
                    device float4* x [[buffer(5)]],                 // [T][hidden]
                    uint3 at [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]],
                    uint simd [[simdgroup_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, sums, row_simds);
  const uint row = at.x;
  device const float4* experts_out = pair_out + row * experts_per_token * row_quads;
  float squares = 0.0f;
  for (uint i = thread_index; i < row_quads; i += row_threads) {
    float4 mixed = float4(0.0f);
    for (uint e = 0; e < experts_per_token; ++e)
      mixed = fma(float4(routes[row].share[e]), experts_out[e * row_quads + i], mixed);
    mixed = fma(float4(routes[row].shared), shared_out[row * row_quads + i], mixed);
    const float4 sum = h[row * row_quads + i] + mixed;
    h[row * row_quads + i] = sum;
    squares += dot(sum, sum);
  }
  const float scale = row_scale(squares, sums, simd, lane);
  for (uint i = thread_index; i < row_quads; i += row_threads)
    x[row * row_quads + i] = h[row * row_quads + i] * scale * gain[i];
}
