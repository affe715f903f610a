// What both attention kernels do between their matrix products, by one warp: a query head's 16 tokens, rows g
// and g + 8 a lane, scores and outputs as accumulators of m16n8k16.
#pragma once
#include <cstdint>

#include "cuda/attention_prefill.h"
#include "cuda/mixer_fragments.cuh"

namespace calla::cuda::attention {

inline constexpr int dim = Shape::attention_head_dim;
inline constexpr int tokens_a_block = 16;
inline constexpr int row_bytes = dim * static_cast<int>(sizeof(__nv_bfloat16));

/// Hides the keys behind `last_visible`, the last key of row g, both counted from the tile's first.
template <int keys>
__device__ inline void mask(float (&s)[keys / 8][4], int last_visible, int t) {
#pragma unroll
  for (int n = 0; n < keys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (8 * n + 2 * t + i % 2 > last_visible + i / 2 * 8) s[n][i] = -INFINITY;
  }
}

/// An online softmax's statistics of a lane's two rows.
struct Softmax {
  float peak[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};  // over this lane's columns, of 2^((s - peak) log2(e) / 16)

  /// Scores become those exponentials. What was summed up before them has to be multiplied by `shrink`.
  template <int keys>
  __device__ void absorb(float (&s)[keys / 8][4], float (&shrink)[2]) {
    constexpr float to_exponent = 1.44269504F / 16;  // log2(e) / sqrt(256)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = peak[half];
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) highest = fmaxf(highest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      highest = fmaxf(highest, __shfl_xor_sync(~0U, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(~0U, highest, 2));
      const float offset = highest * to_exponent;
      shrink[half] = exp2_approximate(peak[half] * to_exponent - offset);
      peak[half] = highest;
      sum[half] *= shrink[half];
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[n][i] = exp2_approximate(s[n][i] * to_exponent - offset);
          sum[half] += s[n][i];
        }
      }
    }
  }
};

/// O times `shrink`; most tiles bring no new peak to any row of a warp.
__device__ inline void rescale(float (&o)[dim / 8][4], const float (&shrink)[2]) {
  if (__all_sync(~0U, shrink[0] == 1.0F && shrink[1] == 1.0F)) return;
#pragma unroll
  for (int n = 0; n < dim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] *= shrink[i / 2];
  }
}

/// The exponentials of keys 16 step .. +15 as an A fragment.
__device__ inline uint4 fragment(const float (&left)[4], const float (&right)[4]) {
  return {pack_bfloat16(left[0], left[1]), pack_bfloat16(left[2], left[3]), pack_bfloat16(right[0], right[1]),
          pack_bfloat16(right[2], right[3])};
}

/// y = O / sum * sigmoid(gate), in whole rows by way of 8 KB of shared memory of the warp's own.
template <int heads>
__device__ inline void write_out(const AttentionPrefill& call, const float (&o)[dim / 8][4], Softmax& softmax,
                                 std::uint32_t staging, int first_token, int head, int lane) {
  const int g = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float& sum = softmax.sum[half];
    sum += __shfl_xor_sync(~0U, sum, 1);
    sum += __shfl_xor_sync(~0U, sum, 2);
    const float factor = 1.0F / sum;
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) {
      store_shared(staging + (g + 8 * half) * row_bytes + ((n ^ g) << 4) + 4 * t,
                   pack_half(o[n][2 * half] * factor, o[n][2 * half + 1] * factor));
    }
  }
  __syncwarp();
  const int rows = min(tokens_a_block, call.tokens - first_token);
  for (int i = 0; i < rows; ++i) {
    const std::size_t token = first_token + i;
    const uint4 x = load_shared(staging + i * row_bytes + ((lane ^ i % 8) << 4));
    const uint4 gate = *reinterpret_cast<const uint4*>(call.projected + token * call.stride +
                                                       (2 * head + 1) * dim + 8 * lane);
    *reinterpret_cast<uint4*>(call.y + (token * heads + head) * dim + 8 * lane) = gated(x, gate);
  }
}

}  // namespace calla::cuda::attention
