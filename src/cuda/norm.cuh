// RMSNorm of a row that lies in a block's registers, eight neighbouring elements a thread.
#pragma once
#include <cuda_fp16.h>

#include "model/shape.h"

namespace calla::cuda {

/// Threads for a row.
constexpr int row_threads(int hidden) { return hidden / 8; }

/// 1 / sqrt(mean(x^2) + epsilon) of a row; by all threads of its block. Sums in a fixed order.
template <int hidden>
__device__ float rms_factor(const float (&x)[8]) {
  constexpr int warps = row_threads(hidden) / 32;
  static_assert(row_threads(hidden) % 32 == 0);
  __shared__ float sums[warps];
  float sum = 0;
#pragma unroll
  for (const float value : x) sum = fmaf(value, value, sum);
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0U, sum, apart);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (const float of_warp : sums) total += of_warp;
  return 1.0F / sqrtf(total / static_cast<float>(hidden) + rms_norm_epsilon);
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
