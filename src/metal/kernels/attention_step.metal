// Attention of one new token over the cached positions and itself, four query heads of a KV head a
// threadgroup.
//
//   out[h] = sigmoid(gate[h]) * softmax(q[h] K^T / 16) V,  q and k with RMS norm and RoPE
//
// The newest row of K and V comes from `projected`, is rounded to bfloat16 like all others, and is appended
// to the cache by the first threadgroup of its KV head: nobody reads it there in this step. attention_step
// takes all positions, attention_split the split_positions() of them from group.x on; its results are put
// together by attention_combine. 256 threads, 22.3 KiB of threadgroup memory; grids in mixer_grids.h. Moves 1
// KB a position and KV head for each group of query heads, (heads_per_kv / 4) times in all, all but the first
// from cache. Live floats a thread: 32 of q, 32 of the result, 32 of rows and scores. Bound by instructions:
// 64 multiply-adds and some 50 other instructions for 32 bytes a lane.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/attention_softmax.h"
#include "metal/kernels/bfloat16.h"
#include "metal/kernels/kv_pages.h"
#include "metal/kernels/mixer_grids.h"
#include "metal/kernels/rotary.h"
#include "metal/kernels/shape.h"
#include "metal/kernels/slots.h"

using namespace metal;
using namespace calla_kernels;

namespace {

/// What both kernels are given.
struct Inputs {
  device const float* projected;  // of the row: heads x (q | gate) | k | v
  device const float* q_norm;
  device const float* k_norm;
  device const float2* turns;     // of the position
  device const uint* page_table;  // of the slot
  device ushort* kv0;
  device ushort* kv1;
  device ushort* kv2;
  device ushort* kv3;
};

/// Threadgroup memory.
struct Shared {
  threadgroup float* queries;   // [4][head_dim]
  threadgroup float* newest;    // [key, value][head_dim]
  threadgroup float* exchange;  // [SIMD-group][2][head_dim]
  threadgroup float2* stats;    // [SIMD-group][4]
};

/// Where a thread is.
struct Place {
  uint thread_index;
  uint simd;
  uint lane;
};

/// The queries, and the newest key and value.
inline void prepare(thread const Inputs& in,
                    thread const Shared& shared,
                    thread const Place& at,
                    uint first_head,
                    uint kv_head) {
  device const float* key = in.projected + 2 * attention_dim + kv_head * head_dim;
  device const float* value = key + kv_dim;
  float x[head_values];
  if (at.simd < queries_per_group) {
    load_head(x, in.projected + (first_head + at.simd) * 2 * head_dim, in.q_norm, in.turns, at.lane);
#pragma clang loop unroll(full)
    for (uint i = 0; i < head_values; ++i)
      shared.queries[at.simd * head_dim + at.lane + 32 * i] = x[i] * score_scale;
  } else if (at.simd == queries_per_group) {
    load_head(x, key, in.k_norm, in.turns, at.lane);
#pragma clang loop unroll(full)
    for (uint i = 0; i < head_values; ++i) shared.newest[at.lane + 32 * i] = round_to_bf16(x[i]);
  } else if (at.simd == queries_per_group + 1) {
#pragma clang loop unroll(full)
    for (uint i = 0; i < head_values; ++i)
      shared.newest[head_dim + at.lane + 32 * i] = round_to_bf16(value[at.lane + 32 * i]);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

/// Puts the newest key and value into the cache, a word of two a thread.
inline void append(thread const Inputs& in,
                   thread const Shared& shared,
                   thread const Place& at,
                   constant AttentionArguments& args,
                   uint kv_head,
                   uint position) {
  const uint keys_or_values = at.thread_index / (head_dim / 2);
  const uint pair = at.thread_index % (head_dim / 2);
  device uint* rows =
      (device uint*)kv_rows(in.kv0, in.kv1, in.kv2, in.kv3, args, in.page_table[position / page_positions],
                            kv_head, keys_or_values);
  threadgroup const float* source = shared.newest + keys_or_values * head_dim + 2 * pair;
  rows[position % page_positions * (head_dim / 2) + pair] = bf16_pair(source[0], source[1]);
}

/// The softmax over positions first .. last - 1, and `position` where that is last - 1.
inline void attend(thread MergedSoftmax& merged,
                   thread const Inputs& in,
                   thread const Shared& shared,
                   thread const Place& at,
                   constant AttentionArguments& args,
                   uint group_index,
                   uint position,
                   uint first,
                   uint last) {
  const uint first_head = group_index * queries_per_group;
  const uint kv_head = first_head / heads_per_kv;
  const bool has_newest = last > position;
  prepare(in, shared, at, first_head, kv_head);
  if (has_newest && first_head % heads_per_kv == 0) append(in, shared, at, args, kv_head, position);

  float q[lane_values];
#pragma clang loop unroll(full)
  for (uint h = 0; h < queries_per_group; ++h)
#pragma clang loop unroll(full)
    for (uint d = 0; d < lane_dims; ++d)
      q[h * lane_dims + d] = shared.queries[h * head_dim + at.lane * lane_dims + d];

  // The last SIMD-group has the least to do of a last block.
  Softmax softmax;
  if (has_newest && at.simd == attention_simds - 1)
    start_with(softmax, q, shared.newest, at.lane);
  else
    clear(softmax);
  const uint cached = has_newest ? position : last;
  for (uint start = first + at.simd * simd_positions; start < cached; start += attention_block) {
    const uint page = in.page_table[start / page_positions];
    device const ushort* keys = kv_rows(in.kv0, in.kv1, in.kv2, in.kv3, args, page, kv_head, kv_keys);
    device const ushort* values = kv_rows(in.kv0, in.kv1, in.kv2, in.kv3, args, page, kv_head, kv_values);
    const uint row = start % page_positions;
    const uint last_row = min(row + simd_positions, row + cached - start) - 1;
    take_rows(softmax, q, (device const uint4*)keys, (device const uint4*)values, row, last_row, at.lane);
  }
  merge(merged, softmax, shared.exchange, shared.stats, at.thread_index, at.simd, at.lane);
}

}  // namespace
kernel void attention_step(device const float* projected [[buffer(0)]],  // [rows][heads x (q | gate) | k | v]
                           device const float* q_norm [[buffer(1)]],     // [head_dim], the gain
                           device const float* k_norm [[buffer(2)]],     // [head_dim], the gain
                           device const float2* rope [[buffer(3)]],      // [context][rotary_pairs] (cos, sin)
                           device const SlotState* slots [[buffer(4)]],
                           device const uint* page_table [[buffer(5)]],  // a slot's: [max_pages]
                           device ushort* kv0 [[buffer(6)]],
                           device ushort* kv1 [[buffer(7)]],
                           device ushort* kv2 [[buffer(8)]],
                           device ushort* kv3 [[buffer(9)]],
                           device float* mixed [[buffer(10)]],  // [rows][attention_dim]
                           constant AttentionArguments& args [[buffer(11)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint simd [[simdgroup_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, queries, uint(queries_per_group) * head_dim);
  TG_ARRAY(float, newest, 2 * head_dim);
  TG_ARRAY(float, exchange, attention_simds * 2 * head_dim);
  TG_ARRAY(float2, stats, group_stats);
  const uint row = group.z;
  const uint slot = args.slots[row];
  const uint head = group.y * queries_per_group;
  device float* out = mixed + row * attention_dim + head * head_dim + thread_index;
  if (!is_live(slot, slots)) {
#pragma clang loop unroll(full)
    for (uint h = 0; h < queries_per_group; ++h) out[h * head_dim] = 0.0f;
    return;
  }

  const uint position = slots[slot].position;
  const Inputs in = {projected + row * attention_projected,
                     q_norm,
                     k_norm,
                     rope + position * rotary_pairs,
                     page_table + slot * args.max_pages,
                     kv0,
                     kv1,
                     kv2,
                     kv3};
  const Shared shared = {queries, newest, exchange, stats};
  const Place at = {thread_index, simd, lane};
  MergedSoftmax merged;
  attend(merged, in, shared, at, args, group.y, position, 0, position + 1);
  device const float* gate = in.projected + (2 * head + 1) * head_dim + thread_index;
#pragma clang loop unroll(full)
  for (uint h = 0; h < queries_per_group; ++h)
    out[h * head_dim] = gated(merged.out[h], simd_shuffle(merged.sum, h), gate[h * 2 * head_dim]);
}

kernel void attention_split(device const float* projected [[buffer(0)]],  // as of attention_step
                            device const float* q_norm [[buffer(1)]],
                            device const float* k_norm [[buffer(2)]],
                            device const float2* rope [[buffer(3)]],
                            device const SlotState* slots [[buffer(4)]],
                            device const uint* page_table [[buffer(5)]],
                            device ushort* kv0 [[buffer(6)]],
                            device ushort* kv1 [[buffer(7)]],
                            device ushort* kv2 [[buffer(8)]],
                            device ushort* kv3 [[buffer(9)]],
                            device float* partial [[buffer(10)]],  // [rows][heads][args.splits][head_dim]
                            device float2* stats [[buffer(11)]],   // [rows][heads][args.splits] (peak, sum)
                            constant AttentionArguments& args [[buffer(12)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            uint thread_index [[thread_index_in_threadgroup]],
                            uint simd [[simdgroup_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, queries, uint(queries_per_group) * head_dim);
  TG_ARRAY(float, newest, 2 * head_dim);
  TG_ARRAY(float, exchange, attention_simds * 2 * head_dim);
  TG_ARRAY(float2, softmax_stats, group_stats);
  const uint row = group.z;
  const uint slot = args.slots[row];
  if (!is_live(slot, slots)) return;
  const uint position = slots[slot].position;
  const uint length = split_positions(position + 1);
  const uint first = group.x * length;
  if (first > position) return;

  const Inputs in = {projected + row * attention_projected,
                     q_norm,
                     k_norm,
                     rope + position * rotary_pairs,
                     page_table + slot * args.max_pages,
                     kv0,
                     kv1,
                     kv2,
                     kv3};
  const Shared shared = {queries, newest, exchange, softmax_stats};
  const Place at = {thread_index, simd, lane};
  MergedSoftmax merged;
  attend(merged, in, shared, at, args, group.y, position, first, min(first + length, position + 1));
  const uint head = group.y * queries_per_group;
  const uint place = (row * attention_heads + head) * args.splits + group.x;
#pragma clang loop unroll(full)
  for (uint h = 0; h < queries_per_group; ++h)
    partial[(place + h * args.splits) * head_dim + thread_index] = merged.out[h];
  if (thread_index < queries_per_group)
    stats[place + thread_index * args.splits] = float2{merged.peak, merged.sum};
}
