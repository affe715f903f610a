// RMSNorm of a row that lies in a warp's registers.
#pragma once
#include <cuda_fp16.h>

#include "model/shape.h"

namespace calla::cuda {

/// The sum of a value of each lane, in a fixed order, the same in every lane.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(~0U, value, apart);
  return value;
}

/// 1 / sqrt(mean(x^2) + epsilon) of a row, each lane with `count` of its elements.
template <int count>
__device__ float rms_factor(const float (&x)[count]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < count; ++i) sum = fmaf(x[i], x[i], sum);
  return 1.0F / sqrtf(warp_sum(sum) / static_cast<float>(32 * count) + rms_norm_epsilon);
}

/// Eight floats in half; not clamped: a normed value is at most sqrt(hidden) times its gain.
__device__ inline uint4 to_halves(const float* values) {
  uint4 result;
  auto* halves = reinterpret_cast<__half2*>(&result);
#pragma unroll
  for (int i = 0; i < 4; ++i) halves[i] = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
  return result;
}

/// Eight floats at a place that is a multiple of 32 bytes.
__device__ inline void load_floats(const float* from, float* to) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
  *reinterpret_cast<float4*>(to + 4) = *reinterpret_cast<const float4*>(from + 4);
}

}  // namespace calla::cuda
