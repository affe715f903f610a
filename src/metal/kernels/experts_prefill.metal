// The mixture of experts in prefill, between the routing and the residual stream.
//
//   inner[s] = silu(x[t] G^T) * (x[t] U^T)    s-th of the sorted pairs, t its token, G and U of its expert
//   pair_out[p] = inner[s] D^T                p = pairs[s]
//   h[t] += sum_i share[t][i] pair_out[8 t + i] + shared share[t] * shared_out[t],  i = 0 .. 7
//
// The grouped products take a block of the map (route.metal) a threadgroup and tile of outputs, blocks first,
// so that the blocks of one expert share its weights; the grid has room for all blocks there may be, and a
// block without rows ends at once. Tiles and arithmetic are those of gemm_tile.h, which says what lives in
// registers: a block has up to R rows and 64 rows of W, of gate and up 32 each, one beside the other. Exact
// products of float32 operands, summed in float32; silu to a few ulp. Weights come from memory once a block:
// 0.9 MB of an expert of the 35B, 1.5 KB a row and expert of x and inner from caches. Bound by the
// SIMD-groups' multipliers where experts have 16 rows and more, below by memory.
#include <metal_stdlib>

#include "metal/kernels/activations.h"
#include "metal/kernels/affine.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/gemm_tile.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/row_norm.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

namespace {

/// The thread's row of a tile of 32 rows of gate and, behind them, the same rows of up. `first`: of the tile,
/// in the stack.
inline WeightRow gate_up_row(Matrix gate, Matrix up, uint first, uint thread_index) {
  const uint row = thread_index / 2;
  if (row < gate_up_columns) return weight_row<4>(gate, first + row, hidden, thread_index);
  return weight_row<4>(up, first + row - gate_up_columns, hidden, thread_index);
}

/// inner = silu(gate) * up of the tile's results, a SIMD-group a row at a time. `inner`: of the tile's first
/// row and output.
inline void store_inner(
    device float* inner, threadgroup const float* results, uint rows, uint width, uint simd, uint lane) {
  for (uint row = simd; row < rows; row += gemm_threads / 32) {
    threadgroup const float* from = results + row * result_stride + lane;
    inner[row * width + lane] = silu(from[0]) * from[gate_up_columns];
  }
}

}  // namespace

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
                            uint3 at [[threadgroup_position_in_grid]],
                            uint thread_index [[thread_index_in_threadgroup]],
                            uint simd [[simdgroup_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, tile, TileMemory<ROWS>::floats);
  const Block block = blocks[at.x];
  if (block.rows == 0) return;
  const uint first_output = at.y * gate_up_columns;

  TileRows<ROWS> rows;
  gather_rows<ROWS>(rows, x, pairs + block.first, block.rows, hidden, thread_index);
  const WeightRow weights =
      gate_up_row({gate_words, gate_scales, gate_biases}, {up_words, up_scales, up_biases},
                  block.expert * expert_hidden + first_output, thread_index);
  tile_product<ROWS, 4>(tile, rows, weights, hidden, block.rows, thread_index, simd);
  store_inner(inner + block.first * expert_hidden + first_output, tile, block.rows, expert_hidden, simd,
              lane);
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
                              uint3 at [[threadgroup_position_in_grid]],
                              uint thread_index [[thread_index_in_threadgroup]],
                              uint simd [[simdgroup_index_in_threadgroup]]) {
  TG_ARRAY(float, tile, TileMemory<ROWS>::floats);
  const Block block = blocks[at.x];
  if (block.rows == 0) return;
  const uint first_output = at.y * gemm_columns;

  TileRows<ROWS> rows;
  find_rows<ROWS>(rows, inner, block.first, block.rows, expert_hidden, thread_index);
  const WeightRow weights =
      weight_row<4>({words, scales, biases}, block.expert * hidden + first_output + thread_index / 2,
                    expert_hidden, thread_index);
  tile_product<ROWS, 4>(tile, rows, weights, expert_hidden, block.rows, thread_index, simd);
  const uint column = thread_index % gemm_columns;
  for (uint row = thread_index / gemm_columns; row < block.rows; row += gemm_threads / gemm_columns)
    pair_out[pairs[block.first + row] * hidden + first_output + column] = tile[row * result_stride + column];
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
                           uint3 at [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint simd [[simdgroup_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, tile, TileMemory<ROWS>::floats);
  const uint first_row = at.x * ROWS;
  const uint count = min(ROWS, args.rows - first_row);
  const uint first_output = at.y * gate_up_columns;

  TileRows<ROWS> rows;
  find_rows<ROWS>(rows, x, first_row, count, hidden, thread_index);
  const WeightRow weights = gate_up_row({gate_words, gate_scales, gate_biases},
                                        {up_words, up_scales, up_biases}, first_output, thread_index);
  tile_product<ROWS, 4>(tile, rows, weights, hidden, count, thread_index, simd);
  store_inner(inner + first_row * shared_hidden + first_output, tile, count, shared_hidden, simd, lane);
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
