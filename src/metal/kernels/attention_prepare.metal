// Queries, keys and values of prefill's attention from the layer's first product.
//
//   query = turn(norm(q)) * log2(e) / 16;  key = turn(norm(k)) and value = v join the cache as bfloat16, to
//   nearest even
//
// norm: x / sqrt(mean(x^2) + 1e-6) * gain over a head; turn: RoPE by the token's position. 64 threads, a
// SIMD-group a head and token, eight dims a lane. All float32. Moves 20 KB a token of the 35B in, 16 KB of
// queries and 2 KB of cache out. Bound by memory.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/attention_softmax.h"
#include "metal/kernels/bfloat16.h"
#include "metal/kernels/kv_pages.h"
#include "metal/kernels/mixer_arguments.h"
#include "metal/kernels/rotary.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

namespace {

/// Stores a head of which value i of a lane is dim lane + 32 i, in words of two neighbours: lanes exchange
/// every second value with the neighbour.
inline void store_row(device uint* row, thread const float* x, uint lane) {
  const bool odd = (lane & 1) != 0;
#pragma clang loop unroll(full)
  for (uint i = 0; i < head_values; i += 2) {
    const float kept = odd ? x[i + 1] : x[i];
    const float got = simd_shuffle_xor(odd ? x[i] : x[i + 1], 1);
    row[16 * (i + (lane & 1)) + lane / 2] = odd ? bf16_pair(got, kept) : bf16_pair(kept, got);
  }
}

}  // namespace

kernel void attention_prepare(device const float* projected
                              [[buffer(0)]],  // [tokens][heads x (q | gate) | k | v]
                              device const float* q_norm [[buffer(1)]],  // [head_dim], the gain
                              device const float* k_norm [[buffer(2)]],  // [head_dim], the gain
                              device const float2* rope [[buffer(3)]],   // [context][rotary_pairs] (cos, sin)
                              device const uint* page_table [[buffer(4)]],  // the slot's
                              device ushort* kv0 [[buffer(5)]],
                              device ushort* kv1 [[buffer(6)]],
                              device ushort* kv2 [[buffer(7)]],
                              device ushort* kv3 [[buffer(8)]],
                              device float* queries [[buffer(9)]],  // [tokens][attention_dim]
                              constant AttentionPrefillArguments& args [[buffer(10)]],
                              uint3 group [[threadgroup_position_in_grid]],
                              uint simd [[simdgroup_index_in_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]]) {
  const uint head =
      group.x * (attention_prepare_threads / 32) + simd;  // of queries, then of keys, then of values
  const uint token = group.y;
  const uint position = args.position + token;
  device const float* inputs = projected + token * attention_projected;
  device const float2* turns = rope + position * rotary_pairs;

  float x[head_values];
  if (head < attention_heads) {
    load_head(x, inputs + head * 2 * head_dim, q_norm, turns, lane);
    device float* query = queries + token * attention_dim + head * head_dim + lane;
#pragma clang loop unroll(full)
    for (uint i = 0; i < head_values; ++i) query[32 * i] = x[i] * score_scale;
    return;
  }

  const uint row_head = head - attention_heads;  // keys of all KV heads, then their values
  const uint keys_or_values = row_head / kv_heads;
  device const float* source = inputs + 2 * attention_dim + row_head * head_dim;
  if (keys_or_values == kv_keys) {
    load_head(x, source, k_norm, turns, lane);
  } else {
#pragma clang loop unroll(full)
    for (uint i = 0; i < head_values; ++i) x[i] = source[lane + 32 * i];
  }
  device uint* rows = (device uint*)kv_rows(kv0, kv1, kv2, kv3, args, page_table[position / page_positions],
                                            row_head % kv_heads, keys_or_values);
  store_row(rows + position % page_positions * (head_dim / 2), x, lane);
}
