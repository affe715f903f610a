// The first sampling kernel: over many blocks, what the choice of a token needs of each group of 64 tokens.
//
// Formula: peak = max of the adjusted logits, sum = sum of exp((x - peak) / temperature); the same of the
//   model's own logits at temperature 1 where log-probabilities are wanted.
// Shapes: logits [slots][vocabulary] to [rows][vocabulary / 64]; a thread takes four tokens, half a warp 64.
// Rounding: adjusting is float, operation for operation the host's; sums are float, in a fixed order.
// Bytes: 4 a token; 4 more each for counts and for adjusted values where there are penalties or biases.
// Bound: latency, two loads deep: a row is 1 MB over all multiprocessors.
#pragma once
#include "cuda/ptx.cuh"
#include "cuda/sample_values.cuh"

namespace calla::cuda {

inline constexpr int scan_threads = 256;
inline constexpr int scan_tokens = scan_threads * 4;  // of a block

__device__ inline float group_max(float value) {
  for (int lanes = 8; lanes > 0; lanes /= 2) value = fmaxf(value, __shfl_xor_sync(all_lanes, value, lanes));
  return value;
}
__device__ inline float group_sum(float value) {
  for (int lanes = 8; lanes > 0; lanes /= 2) value += __shfl_xor_sync(all_lanes, value, lanes);
  return value;
}

/// The sum over a group of the weights of values not above `peak`.
__device__ inline float group_weight(const float (&values)[4], float peak, Scale scale) {
  float sum = 0;
  if (peak > no_value) {
    for (const float value : values) sum += weight(value - peak, scale);
  }
  return group_sum(sum);
}

/// Adds the biases of the tokens first .. first + 3. The whole warp looks through those of its 128 tokens.
__device__ inline void add_biases(const SlotSampling& s, int first, float (&values)[4]) {
  const int begin = first & ~127;
  int at = 0;
  for (int end = s.biases; at < end;) {
    const int middle = (at + end) / 2;
    if (s.bias[middle].token < begin) {
      at = middle + 1;
    } else {
      end = middle;
    }
  }
  for (; at < s.biases && s.bias[at].token < begin + 128; ++at) {
    const TokenBias bias = s.bias[at];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i == bias.token) values[i] += bias.bias;
    }
  }
}

/// The repetition, presence and frequency penalties; no product is fused with a sum, as on the host.
__device__ inline void penalise(const SlotSampling& s, const std::uint32_t* counts,
                                const std::uint32_t* prompt, int first, float (&values)[4]) {
  const uint4 four = *reinterpret_cast<const uint4*>(counts + first);
  const std::uint32_t count[4] = {four.x, four.y, four.z, four.w};
  const std::uint32_t in_prompt = s.repetition_penalty != 1 ? prompt[first / 32] >> (first % 32) : 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float& x = values[i];
    if (s.repetition_penalty != 1 && (count[i] > 0 || (in_prompt >> i & 1) != 0))
      x = x > 0 ? __fdiv_rn(x, s.repetition_penalty) : __fmul_rn(x, s.repetition_penalty);
    if (count[i] > 0) {
      x = __fsub_rn(
          x, __fadd_rn(s.presence_penalty, __fmul_rn(s.frequency_penalty, static_cast<float>(count[i]))));
    }
  }
}

template <int vocabulary>
__global__ void __launch_bounds__(scan_threads) scan_logits(SampleStep step) {
  static_assert(vocabulary % 128 == 0, "a warp takes 128 tokens");
  constexpr int groups = sample_groups(vocabulary);
  wait_for_predecessor();
  release_successor();
  const int row = static_cast<int>(blockIdx.y);
  if (blockIdx.x == 0 && row == 0 && threadIdx.x == 0) ++*step.step;
  const int first = static_cast<int>(blockIdx.x * scan_threads + threadIdx.x) * 4;
  if (first >= vocabulary) return;
  const int slot = step.slots[row];
  if (slot < 0) return;
  // Asked for before it is known whether the slot has ended, so that the loads overlap.
  const std::size_t slot_start = static_cast<std::size_t>(slot) * vocabulary;
  const float4 four = *reinterpret_cast<const float4*>(step.logits + slot_start + first);
  const SlotSampling& s = step.sampling[slot];
  const bool counting = counts_output(s);
  const bool adjusting = is_adjusted(s);
  const bool summing = needs_sums(s);
  const bool reporting = s.top_logprobs >= 0;
  const int usable = s.vocabulary;
  if (step.ended[slot] != 0) return;

  const float raw[4] = {four.x, four.y, four.z, four.w};
  float values[4] = {four.x, four.y, four.z, four.w};
  if (s.biases > 0) add_biases(s, first, values);
  if (counting) {
    penalise(s, step.counts + slot_start, step.prompts + static_cast<std::size_t>(slot) * (vocabulary / 32),
             first, values);
  }
  if (adjusting) {
    *reinterpret_cast<float4*>(step.adjusted + static_cast<std::size_t>(row) * vocabulary + first) =
        make_float4(values[0], values[1], values[2], values[3]);
  }
  bool fault = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    fault = fault || !isfinite(raw[i]);
    if (first + i >= usable) values[i] = no_value;
  }

  const bool writes = threadIdx.x % 16 == 0;
  const std::size_t group = static_cast<std::size_t>(row) * groups + first / sample_group;
  const unsigned faults = __ballot_sync(all_lanes, fault) >> (threadIdx.x & 16) & 0xFFFF;
  const float peak = group_max(fmaxf(fmaxf(values[0], values[1]), fmaxf(values[2], values[3])));
  if (writes) step.peaks[group] = faults != 0 ? __int_as_float(0x7FFFFFFF) : peak;
  if (summing) {
    const float sum = group_weight(values, peak, {s.scale_high, s.scale_low});
    if (writes) step.sums[group] = sum;
  }
  if (reporting) {
    const float raw_peak = group_max(fmaxf(fmaxf(raw[0], raw[1]), fmaxf(raw[2], raw[3])));
    const float sum = group_weight(raw, raw_peak, natural_scale);
    if (writes) {
      step.raw_peaks[group] = raw_peak;
      step.raw_sums[group] = sum;
    }
  }
}

}  // namespace calla::cuda
