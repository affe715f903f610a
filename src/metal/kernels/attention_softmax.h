// Attention of one token to cached positions: the running softmax of a SIMD-group for four query heads, and
// how those of a threadgroup become one.
//
// A SIMD-group takes 8 positions of every block of 64: which ones, and in which order, depends on nothing but
// the positions. Of keys and values a lane has 8 neighbouring dims, one load of 16 bytes a row; scores and
// weights of the 8 positions are one a lane, for position lane / 4 and head lane % 4. Scores are in base 2: q
// has the factor log2(e) / sqrt(head_dim).
#pragma once
#include <metal_stdlib>

#include "metal/kernels/activations.h"
#include "metal/kernels/bfloat16.h"
#include "metal/kernels/lane_sums.h"
#include "metal/kernels/mixer_grids.h"
#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

enum : uint {
  attention_block = 64,
  attention_simds = attention_step_threads / 32,
  simd_positions = attention_block / attention_simds,  // of a block
  lane_dims = head_dim / 32,
  lane_values = uint(queries_per_group) * lane_dims,        // of the four heads
  group_stats = uint(queries_per_group) * attention_simds,  // of a threadgroup
};

constant float score_scale = 0.0625f * 1.44269504089f;
constant float no_score = -1e30f;

struct Softmax {
  float peak;              // of head lane % 4
  float sum;               // this lane's part of the head's sum of exp2(score - peak)
  float out[lane_values];  // [head][dim], sums of exp2(score - peak) * value
};

inline void unpack(thread float* x, uint4 row) {
#pragma clang loop unroll(full)
  for (uint i = 0; i < 4; ++i) {
    x[2 * i] = bf16_low(row[i]);
    x[2 * i + 1] = bf16_high(row[i]);
  }
}

/// Scores of the four rows from `first` on, those behind `last` as `last`, summed over each half of the
/// SIMD-group: a lane gets that of row lane % 16 / 4 and head lane % 4.
inline float half_scores(thread const float* q, device const uint4* keys, uint first, uint last, uint lane) {
  uint4 rows[4];
#pragma clang loop unroll(full)
  for (uint r = 0; r < 4; ++r) rows[r] = keys[min(first + r, last) * 32 + lane];
  float sums[4 * queries_per_group];
#pragma clang loop unroll(full)
  for (uint r = 0; r < 4; ++r) {
    float k[lane_dims];
    unpack(k, rows[r]);
#pragma clang loop unroll(full)
    for (uint h = 0; h < queries_per_group; ++h) {
      float sum = q[h * lane_dims] * k[0];
#pragma clang loop unroll(full)
      for (uint d = 1; d < lane_dims; ++d) sum = fma(q[h * lane_dims + d], k[d], sum);
      sums[r * queries_per_group + h] = sum;
    }
  }
  return half_sums(sums, lane);
}

/// Takes rows first .. first + 7 of a page, those up to `last`.
inline void take_rows(thread Softmax& softmax,
                      thread const float* q,
                      device const uint4* keys,
                      device const uint4* values,
                      uint first,
                      uint last,
                      uint lane) {
  const float low = half_scores(q, keys, first, last, lane);
  const float high = half_scores(q, keys, first + 4, last, lane);
  const bool upper = lane >= 16;
  const float score = (upper ? high : low) + simd_shuffle_xor(upper ? low : high, 16);

  const bool taken = first + lane / 4 <= last;
  float peak = taken ? score : no_score;
  for (uint distance = queries_per_group; distance < 32; distance *= 2)
    peak = fmax(peak, simd_shuffle_xor(peak, distance));
  peak = fmax(peak, softmax.peak);
  const float weight = taken ? fast::exp2(score - peak) : 0.0f;
  const float correction = fast::exp2(softmax.peak - peak);
  softmax.peak = peak;
  softmax.sum = fma(softmax.sum, correction, weight);
#pragma clang loop unroll(full)
  for (uint h = 0; h < queries_per_group; ++h) {
    const float factor = simd_shuffle(correction, h);
#pragma clang loop unroll(full)
    for (uint d = 0; d < lane_dims; ++d) softmax.out[h * lane_dims + d] *= factor;
  }

  for (uint r = 0; r < simd_positions; ++r) {
    float v[lane_dims];
    unpack(v, values[min(first + r, last) * 32 + lane]);
#pragma clang loop unroll(full)
    for (uint h = 0; h < queries_per_group; ++h) {
      const float share = simd_shuffle(weight, r * queries_per_group + h);
#pragma clang loop unroll(full)
      for (uint d = 0; d < lane_dims; ++d)
        softmax.out[h * lane_dims + d] = fma(share, v[d], softmax.out[h * lane_dims + d]);
    }
  }
}

/// The softmax of no position.
inline void clear(thread Softmax& softmax) {
  softmax.peak = no_score;
  softmax.sum = 0.0f;
#pragma clang loop unroll(full)
  for (uint i = 0; i < lane_values; ++i) softmax.out[i] = 0.0f;
}

/// The softmax of the newest position alone: `newest` has its key and value, rounded like all others.
inline void start_with(thread Softmax& softmax,
                       thread const float* q,
                       threadgroup const float* newest,
                       uint lane) {
  threadgroup const float* key = newest + lane * lane_dims;
  threadgroup const float* value = key + head_dim;
#pragma clang loop unroll(full)
  for (uint h = 0; h < queries_per_group; ++h) {
    float sum = 0.0f;
#pragma clang loop unroll(full)
    for (uint d = 0; d < lane_dims; ++d) {
      sum = fma(q[h * lane_dims + d], key[d], sum);
      softmax.out[h * lane_dims + d] = value[d];
    }
    const float score = simd_sum(sum);
    if (lane % queries_per_group == h) softmax.peak = score;
  }
  softmax.sum = lane < queries_per_group ? 1.0f : 0.0f;
}

/// What a thread has of the threadgroup's softmax: `out` of dim thread_index of each head. Its peak and sum
/// are those of head lane % 4.
struct MergedSoftmax {
  float peak;
  float sum;
  float out[queries_per_group];
};

/// Sums heads FIRST and FIRST + 1 over the SIMD-groups, each times its `scale`.
template <uint FIRST>
inline void merge_pair(thread MergedSoftmax& merged,
                       thread const Softmax& softmax,
                       float scale,
                       threadgroup float* exchange,
                       uint thread_index,
                       uint simd,
                       uint lane) {
  threadgroup float* own = exchange + simd * 2 * head_dim + lane * lane_dims;
#pragma clang loop unroll(full)
  for (uint h = 0; h < 2; ++h) {
    const float factor = simd_shuffle(scale, FIRST + h);
#pragma clang loop unroll(full)
    for (uint d = 0; d < lane_dims; ++d)
      own[h * head_dim + d] = softmax.out[(FIRST + h) * lane_dims + d] * factor;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma clang loop unroll(full)
  for (uint h = 0; h < 2; ++h) {
    float sum = 0.0f;
    for (uint s = 0; s < attention_simds; ++s) sum += exchange[(s * 2 + h) * head_dim + thread_index];
    merged.out[FIRST + h] = sum;
  }
}

/// One softmax of those of all SIMD-groups, of which at least one has taken a position. exchange: 2 *
/// head_dim floats a SIMD-group; stats: queries_per_group a SIMD-group.
inline void merge(thread MergedSoftmax& merged,
                  thread const Softmax& softmax,
                  threadgroup float* exchange,
                  threadgroup float2* stats,
                  uint thread_index,
                  uint simd,
                  uint lane) {
  float sum = softmax.sum;
  for (uint distance = queries_per_group; distance < 32; distance *= 2)
    sum += simd_shuffle_xor(sum, distance);
  if (lane < queries_per_group) stats[simd * queries_per_group + lane] = float2{softmax.peak, sum};
  threadgroup_barrier(mem_flags::mem_threadgroup);

  threadgroup const float2* head_stats = stats + lane % queries_per_group;
  merged.peak = no_score;
  for (uint s = 0; s < attention_simds; ++s)
    merged.peak = fmax(merged.peak, head_stats[s * queries_per_group].x);
  merged.sum = 0.0f;
  for (uint s = 0; s < attention_simds; ++s) {
    const float2 part = head_stats[s * queries_per_group];
    merged.sum = fma(part.y, fast::exp2(part.x - merged.peak), merged.sum);
  }

  const float scale = fast::exp2(softmax.peak - merged.peak);
  merge_pair<0>(merged, softmax, scale, exchange, thread_index, simd, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  merge_pair<2>(merged, softmax, scale, exchange, thread_index, simd, lane);
}

/// The result of a head's dim.
inline float gated(float out, float sum, float gate) { return out / sum * sigmoid(gate); }

}  // namespace calla_kernels
