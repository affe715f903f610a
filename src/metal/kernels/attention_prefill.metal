// Causal attention of a prefill's tokens to all positions up to their own, from the pages of keys and values.
//
//   mixed = softmax2(query . keys) values * sigmoid(gate),  softmax2 with exp2: queries come scaled by
//   log2(e) / 16
//
// A tile is 32 rows: 4 tokens x the 8 query heads of a KV head, so that keys and values are loaded once for
// all heads. It goes through the positions in blocks of 32 that begin at multiples of 32; a row's result
// depends on nothing else. 256 threads: SIMD-group (r, d) has rows 16 r .. +15 and dims 64 d .. +63 of the
// queries and of the result in registers. For each block: the products over its 64 dims go to threadgroup
// memory | barrier | eight threads a row sum the four parts, and the running softmax leaves weights and a
// correction | barrier | the result is corrected and weights x values added. Keys and values are read
// straight from the pages, 16 bytes a lane, widened in registers; products and sums are float32. 23 KB of
// threadgroup memory.
//
// Moves 1 KB a position and tile, from caches all but the first time, for 16,384 multiply-adds. Live floats a
// thread: 32 of queries, 32 of the result, 20 of matrices under way. Bound by multiply-adds: 128 products of
// matrices a block and SIMD-group, beside some 250 other instructions.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/attention_softmax.h"
#include "metal/kernels/bfloat16.h"
#include "metal/kernels/kv_pages.h"
#include "metal/kernels/mixer_arguments.h"
#include "metal/kernels/shape.h"
#include "metal/kernels/simd_matrix.h"

using namespace metal;
using namespace calla_kernels;

namespace {

enum : uint {
  tile_rows = uint(attention_tile_tokens) * heads_per_kv,
  block_keys = 32,
  dim_groups = 4,
  group_dims = uint(head_dim) / dim_groups,
  row_groups = attention_prefill_threads / 32 / dim_groups,
  row_blocks = tile_rows / row_groups / 8,  // of 8 rows, in a SIMD-group
  dim_blocks = group_dims / 8,
  row_threads = attention_prefill_threads / tile_rows,  // that share a row's softmax
  score_stride = block_keys + 4,  // floats between rows: so that they fall on different banks
  part_size = tile_rows * score_stride,
  row_quads = head_dim / 8,  // 16-byte loads of a row of keys or values
};
static_assert(row_threads * 4 == block_keys, "a thread has four scores of a block");

/// What a SIMD-group holds, and where in the tile it is.
struct Tile {
  simdgroup_float8x8 queries[row_blocks][dim_blocks];
  simdgroup_float8x8 out[row_blocks][dim_blocks];
  uint first_row;  // of the tile's rows
  uint dim_group;
  uint row;     // the lane's, in a matrix
  uint column;  // and the first of its two columns
};

/// Value `i` of eight bfloat16.
inline float widened(uint4 values, uint i) {
  return i % 2 == 0 ? bf16_low(values[i / 2]) : bf16_high(values[i / 2]);
}

/// The SIMD-group's queries. Which dims the i-th product sums over does not matter as long as both of its
/// matrices agree: its j-th is dim 8 j + i of the group's 64, so that a lane has its elements of all eight
/// from 16 neighbouring bytes of a key.
inline void load_queries(
    thread Tile& tile, device const float* queries, uint kv_head, uint first_token, uint tokens) {
#pragma clang loop unroll(full)
  for (uint r = 0; r < row_blocks; ++r) {
    const uint row = tile.first_row + 8 * r + tile.row;
    const uint token = min(first_token + row / heads_per_kv, tokens - 1);
    const uint head = kv_head * heads_per_kv + row % heads_per_kv;
    device const float4* source = (device const float4*)(queries + token * attention_dim + head * head_dim +
                                                         tile.dim_group * group_dims + 8 * tile.column);
#pragma clang loop unroll(full)
    for (uint side = 0; side < 2; ++side) {
      const float4 first = source[side];
      const float4 second = source[2 + side];
#pragma clang loop unroll(full)
      for (uint i = 0; i < 4; ++i) set_elements(tile.queries[r][4 * side + i], first[i], second[i]);
    }
  }
}

/// The part of the block's scores that the group's dims make. Keys behind `last` count as the last one.
inline void multiply_keys(thread Tile& tile, device const uint4* keys, uint last, threadgroup float* part) {
  for (uint first = 0; first < block_keys; first += 8) {
    const uint key = first + tile.column;
    const uint quad = tile.dim_group * (group_dims / 8) + tile.row;
    const uint4 left = keys[min(key, last) * row_quads + quad];
    const uint4 right = keys[min(key + 1, last) * row_quads + quad];
    simdgroup_float8x8 scores[row_blocks];
#pragma clang loop unroll(full)
    for (uint r = 0; r < row_blocks; ++r) scores[r] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
#pragma clang loop unroll(full)
    for (uint i = 0; i < dim_blocks; ++i) {
      simdgroup_float8x8 block;
      set_elements(block, widened(left, i), widened(right, i));
#pragma clang loop unroll(full)
      for (uint r = 0; r < row_blocks; ++r)
        simdgroup_multiply_accumulate(scores[r], tile.queries[r][i], block, scores[r]);
    }
#pragma clang loop unroll(full)
    for (uint r = 0; r < row_blocks; ++r)
      simdgroup_store(scores[r], part + (tile.first_row + 8 * r) * score_stride + first, score_stride);
  }
}

/// The running softmax of a row, as its threads keep it.
struct RowSoftmax {
  float peak;
  float sum;  // of the thread's own weights
};

/// Turns the parts of four scores, of which the first `visible` count, into weights. Returns what earlier
/// weights are to be multiplied by: exactly 1 when the peak stays, or blocks of which a row sees nothing
/// would change it.
inline float weigh(thread RowSoftmax& softmax,
                   threadgroup const float4* parts,
                   threadgroup float4* weights,
                   int visible) {
  constexpr uint stride = part_size / 4;
  const float4 scores = (parts[0] + parts[stride]) + (parts[2 * stride] + parts[3 * stride]);
  float peak = no_score;
#pragma clang loop unroll(full)
  for (int i = 0; i < 4; ++i) peak = i < visible ? fmax(peak, scores[i]) : peak;
  for (uint distance = 1; distance < row_threads; distance *= 2)
    peak = fmax(peak, simd_shuffle_xor(peak, distance));
  peak = fmax(peak, softmax.peak);
  float4 weight;
#pragma clang loop unroll(full)
  for (int i = 0; i < 4; ++i) weight[i] = i < visible ? fast::exp2(scores[i] - peak) : 0.0f;
  const float correction = peak == softmax.peak ? 1.0f : fast::exp2(softmax.peak - peak);
  softmax.sum = fma(softmax.sum, correction, (weight.x + weight.y) + (weight.z + weight.w));
  softmax.peak = peak;
  *weights = weight;
  return correction;
}

/// out = out * corrections + weights x values. The two columns of a lane in the i-th matrix are dims 4 column
/// + 2 i and + 1 of the half of the group's 64 that it belongs to: eight neighbours in four matrices.
inline void multiply_values(thread Tile& tile,
                            device const uint4* values,
                            uint last,
                            threadgroup const float* weights,
                            threadgroup const float* corrections) {
#pragma clang loop unroll(full)
  for (uint r = 0; r < row_blocks; ++r) {
    const float correction = corrections[tile.first_row + 8 * r + tile.row];
#pragma clang loop unroll(full)
    for (uint i = 0; i < dim_blocks; ++i) {
      const float2 out = get_elements(tile.out[r][i]) * correction;
      set_elements(tile.out[r][i], out.x, out.y);
    }
  }
  for (uint first = 0; first < block_keys; first += 8) {
    simdgroup_float8x8 weight[row_blocks];
#pragma clang loop unroll(full)
    for (uint r = 0; r < row_blocks; ++r)
      simdgroup_load(weight[r], weights + (tile.first_row + 8 * r) * score_stride + first, score_stride);
    device const uint4* row = values + min(first + tile.row, last) * row_quads +
                              tile.dim_group * (group_dims / 8) + tile.column / 2;
#pragma clang loop unroll(full)
    for (uint side = 0; side < 2; ++side) {
      const uint4 eight = row[4 * side];
#pragma clang loop unroll(full)
      for (uint i = 0; i < 4; ++i) {
        simdgroup_float8x8 block;
        set_elements(block, bf16_low(eight[i]), bf16_high(eight[i]));
#pragma clang loop unroll(full)
        for (uint r = 0; r < row_blocks; ++r)
          simdgroup_multiply_accumulate(tile.out[r][4 * side + i], weight[r], block,
                                        tile.out[r][4 * side + i]);
      }
    }
  }
}

/// mixed = out / sum * sigmoid(gate), of the rows that stand for a token.
inline void store(thread Tile& tile,
                  device float* mixed,
                  device const float* projected,
                  threadgroup const float* sums,
                  uint kv_head,
                  uint first_token,
                  uint tokens) {
#pragma clang loop unroll(full)
  for (uint r = 0; r < row_blocks; ++r) {
    const uint row = tile.first_row + 8 * r + tile.row;
    const uint token = first_token + row / heads_per_kv;
    if (token >= tokens) continue;
    const uint head = kv_head * heads_per_kv + row % heads_per_kv;
    const uint dim = tile.dim_group * group_dims + 4 * tile.column;
    device float* out = mixed + token * attention_dim + head * head_dim + dim;
    device const float* gates = projected + token * attention_projected + (2 * head + 1) * head_dim + dim;
#pragma clang loop unroll(full)
    for (uint side = 0; side < 2; ++side) {
#pragma clang loop unroll(full)
      for (uint i = 0; i < 4; ++i) {
        const float2 pair = get_elements(tile.out[r][4 * side + i]);
        out[32 * side + 2 * i] = gated(pair.x, sums[row], gates[32 * side + 2 * i]);
        out[32 * side + 2 * i + 1] = gated(pair.y, sums[row], gates[32 * side + 2 * i + 1]);
      }
    }
  }
}

}  // namespace

kernel void attention_prefill(device const float* queries
                              [[buffer(0)]],  // [tokens][attention_dim], of attention_prepare
                              device const float* projected
                              [[buffer(1)]],  // [tokens][heads x (q | gate) | k | v]
                              device const uint* page_table [[buffer(2)]],  // the slot's
                              device const ushort* kv0 [[buffer(3)]],
                              device const ushort* kv1 [[buffer(4)]],
                              device const ushort* kv2 [[buffer(5)]],
                              device const ushort* kv3 [[buffer(6)]],
                              device float* mixed [[buffer(7)]],  // [tokens][attention_dim]
                              constant AttentionPrefillArguments& args [[buffer(8)]],
                              uint3 group [[threadgroup_position_in_grid]],
                              uint3 groups [[threadgroups_per_grid]],
                              uint thread_index [[thread_index_in_threadgroup]],
                              uint simd [[simdgroup_index_in_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float4, parts, dim_groups * part_size / 4);
  TG_ARRAY(float4, weights, part_size / 4);
  TG_ARRAY(float, row_values, tile_rows);  // corrections, and at last the sums

  // The longest first, so that the last to end are short.
  const uint first_token = (groups.x - 1 - group.x) * attention_tile_tokens;
  const uint kv_head = group.y;
  const uint last_position = args.position + min(first_token + attention_tile_tokens, args.tokens) - 1;

  Tile tile;
  tile.first_row = simd / dim_groups * row_blocks * 8;
  tile.dim_group = simd % dim_groups;
  tile.row = element_row(lane);
  tile.column = element_column(lane);
  load_queries(tile, queries, kv_head, first_token, args.tokens);
#pragma clang loop unroll(full)
  for (uint r = 0; r < row_blocks; ++r)
#pragma clang loop unroll(full)
    for (uint i = 0; i < dim_blocks; ++i) tile.out[r][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

  // The thread's scores in a block.
  const uint row = thread_index / row_threads;
  const uint score = thread_index % row_threads * 4;
  const uint position = args.position + min(first_token + row / heads_per_kv, args.tokens - 1);
  const uint place = (row * score_stride + score) / 4;
  RowSoftmax softmax = {no_score, 0.0f};

  for (uint start = 0; start <= last_position; start += block_keys) {
    const uint page = page_table[start / page_positions];
    const uint first = start % page_positions * row_quads;
    const uint last = last_position - start;
    device const uint4* keys =
        (device const uint4*)kv_rows(kv0, kv1, kv2, kv3, args, page, kv_head, kv_keys) + first;
    device const uint4* values =
        (device const uint4*)kv_rows(kv0, kv1, kv2, kv3, args, page, kv_head, kv_values) + first;

    multiply_keys(tile, keys, last, (threadgroup float*)parts + tile.dim_group * part_size);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const int visible = int(position + 1) - int(start + score);
    const float correction = weigh(softmax, parts + place, weights + place, visible);
    if (score == 0) row_values[row] = correction;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    multiply_values(tile, values, last, (threadgroup const float*)weights, row_values);
  }

  float sum = softmax.sum;
  for (uint distance = 1; distance < row_threads; distance *= 2) sum += simd_shuffle_xor(sum, distance);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (score == 0) row_values[row] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  store(tile, mixed, projected, row_values, kv_head, first_token, args.tokens);
}
