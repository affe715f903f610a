// Puts the results of attention_split together, and gates them.
//
//   mixed = sigmoid(gate) * sum_i w_i partial_i / sum_i w_i sum_i,  w_i = exp2(peak_i - max peak)
//
// Grid (attention_heads, rows), 256 threads: four slices of 64 threads take every fourth split, 4 dims a
// thread. Of one split w is 1 and nothing is added: the bits of attention_step. Moves 1 KB a split. Live
// floats a thread: about 20. Bound by memory: 2.1 MB a row of the 35B at 128 splits.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/attention_softmax.h"
#include "metal/kernels/mixer_grids.h"
#include "metal/kernels/shape.h"
#include "metal/kernels/slots.h"

using namespace metal;
using namespace calla_kernels;

enum : uint {
  quads = head_dim / 4,
  slices = attention_combine_threads / quads,
};

kernel void attention_combine(device const float* projected
                              [[buffer(0)]],  // [rows][heads x (q | gate) | k | v]
                              device const float4* partial
                              [[buffer(1)]],  // [rows][heads][args.splits][head_dim]
                              device const float2* stats
                              [[buffer(2)]],  // [rows][heads][args.splits] (peak, sum)
                              device const SlotState* slots [[buffer(3)]],
                              device float* mixed [[buffer(4)]],  // [rows][attention_dim]
                              constant AttentionArguments& args [[buffer(5)]],
                              uint3 group [[threadgroup_position_in_grid]],
                              uint thread_index [[thread_index_in_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, weights, max_splits);
  TG_ARRAY(float4, sums, slices * quads);
  const uint head = group.x;
  const uint row = group.y;
  const uint slot = args.slots[row];
  device float* out = mixed + (row * attention_heads + head) * head_dim + thread_index;
  if (!is_live(slot, slots)) {
    *out = 0.0f;
    return;
  }

  const uint splits = split_count(slots[slot].position + 1);
  const uint place = (row * attention_heads + head) * args.splits;
  float peak = no_score;
  for (uint i = lane; i < splits; i += 32) peak = fmax(peak, stats[place + i].x);
  peak = simd_max(peak);
  float sum = 0.0f;
  for (uint i = lane; i < splits; i += 32)
    sum = fma(stats[place + i].y, fast::exp2(stats[place + i].x - peak), sum);
  sum = simd_sum(sum);
  if (thread_index < splits) weights[thread_index] = fast::exp2(stats[place + thread_index].x - peak);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const uint quad = thread_index % quads;
  float4 total = float4(0.0f);
  for (uint i = thread_index / quads; i < splits; i += slices)
    total = fma(float4(weights[i]), partial[(place + i) * quads + quad], total);
  sums[thread_index] = total;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  threadgroup const float* dim = (threadgroup const float*)sums + thread_index;
  float value = 0.0f;
  for (uint s = 0; s < slices; ++s) value += dim[s * head_dim];
  const float gate = projected[row * attention_projected + (2 * head + 1) * head_dim + thread_index];
  *out = gated(value, sum, gate);
}
