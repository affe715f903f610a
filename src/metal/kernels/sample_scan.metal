// The logits of rows that change them, weigh them all, or report their logarithms.
//
//   adjusted = logit + biases, then the repetition penalty, then presence and frequency penalty
//   peak, sum of 2^(scale * (x - peak)) of each group of 64 tokens: of what is drawn from, and of the logits
//
// Grid (vocabulary / 256, rows), 128 threads: a SIMD-group has a group, two tokens a lane. Reads 1 MB of
// logits a row of the 35B, and as much of counts where there are penalties; writes 1 MB where values are
// adjusted. Sums are float, their relative error about 2^-23. Live floats a thread: about 20. Bound by
// memory, or rather by the cache that the head has just written.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/sample_arguments.h"
#include "metal/kernels/sample_values.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

// The penalties round as the host's do.
#pragma METAL fp contract(off)

static_assert(uint(vocabulary) % scan_tokens == 0, "threadgroups are whole");

/// Adds the biases of the two tokens from `token` on. biases are by token.
inline float2 add_biases(float2 values, device const TokenBias* biases, uint count, uint first, uint token) {
  uint at = 0;  // of the first bias of the SIMD-group's tokens
  for (uint end = count; at < end;) {
    const uint middle = (at + end) / 2;
    if (biases[middle].token < first) {
      at = middle + 1;
    } else {
      end = middle;
    }
  }
  for (; at < count && biases[at].token < first + head_rows; ++at) {
    if (biases[at].token == token) values.x += biases[at].bias;
    if (biases[at].token == token + 1) values.y += biases[at].bias;
  }
  return values;
}

inline float penalise(float value, uint count, bool in_prompt, device const SlotSampling& s) {
  if (count > 0 || in_prompt)
    value = value > 0.0f ? value / s.repetition_penalty : value * s.repetition_penalty;
  if (count > 0) value -= s.presence_penalty + s.frequency_penalty * float(count);
  return value;
}

inline float sum_weights(float2 values, float peak, Scale scale) {
  return simd_sum(weight(values.x - peak, scale) + weight(values.y - peak, scale));
}

kernel void sample_scan(device const float2* logits [[buffer(0)]],  // [slots][vocabulary / 2]
                        device const Peak* peaks [[buffer(1)]],     // [slots][groups]
                        device const SlotSampling* sampling [[buffer(2)]],
                        device const TokenBias* biases [[buffer(3)]],  // [slots][bias_stride]
                        device const uint2* counts [[buffer(4)]],      // [slots][vocabulary / 2]
                        device const uint* prompts [[buffer(5)]],      // [slots][vocabulary / 32] bits
                        device float2* adjusted [[buffer(6)]],         // [slots][vocabulary / 2]
                        device float* group_peaks [[buffer(7)]],       // [slots][groups]
                        device float* group_sums [[buffer(8)]],        // [slots][groups]
                        device float* raw_sums [[buffer(9)]],          // [slots][groups]
                        constant SampleRows& rows [[buffer(10)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint simd [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  const uint slot = rows.slots[group.y];
  device const SlotSampling& s = sampling[slot];
  const uint part = group.x * (scan_threads / 32) + simd;  // of the groups of 64 tokens
  const uint place = slot * (uint(vocabulary) / head_rows) + part;
  const uint pair = part * (head_rows / 2) + lane;
  const uint token = 2 * pair;
  const float2 raw = logits[slot * (vocabulary / 2) + pair];
  const bool is_fault = simd_or(is_finite(raw.x) && is_finite(raw.y) ? 0U : 1U) != 0;

  float2 values = raw;
  if (s.biases > 0)
    values = add_biases(values, biases + slot * rows.bias_stride, s.biases, part * head_rows, token);
  if ((s.use & use_counts) != 0) {
    const uint2 count = counts[slot * (vocabulary / 2) + pair];
    const uint bits = prompts[slot * (vocabulary / 32) + token / 32] >> (token % 32);
    values.x = penalise(values.x, count.x, (bits & 1U) != 0, s);
    values.y = penalise(values.y, count.y, (bits & 2U) != 0, s);
  }
  if ((s.use & use_adjusted) != 0) adjusted[slot * (vocabulary / 2) + pair] = values;

  if (token >= s.vocabulary) values.x = no_value;
  if (token + 1 >= s.vocabulary) values.y = no_value;
  const float peak = simd_max(fmax(values.x, values.y));
  const float fault = as_type<float>(0x7fc00000U);
  if (lane == 0) group_peaks[place] = is_fault ? fault : peak;
  if ((s.use & use_sums) != 0) {
    const float sum = sum_weights(values, peak, Scale{s.scale_high, s.scale_low});
    if (lane == 0) group_sums[place] = sum;
  }
  if ((s.use & use_logprobs) != 0) {
    const float sum = sum_weights(raw, peaks[place].logit, natural_scale());
    if (lane == 0) raw_sums[place] = is_fault ? fault : sum;
  }
}
