// First kernel of attention prefill: what happens to each head by itself.
//
// q and k: RMS norm over the head's 256 values, times gain, then RoPE on the first 64 as pairs (j, j + 32),
// angle position * theta^(-j / 32). k and v go to the sequence's pages, q to where y will be; all bfloat16,
// rounded once. A block has a token, a warp a head at a time, a lane eight neighbouring values. Bytes: 10 KB
// read, 10 KB written a token of the 35B, which bounds it: 168 MB a layer of 8,192 tokens.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cuda/attention_prefill.h"
#include "cuda/mixer_fragments.cuh"

namespace calla::cuda {

template <int heads, int kv_heads>
inline constexpr int attention_heads_warps = std::min(heads + 2 * kv_heads, 10);

/// Sine and cosine of a position's angle for pair j. The turns are reduced in double, where they are exact to
/// 1e-11; in float the angle of position 262,143 would be off by 0.016.
__device__ inline float2 rope_rotation(int position, int j) {
  constexpr double log2_theta_by_pairs = 23.253496664211536 / 32;
  constexpr double one_by_two_pi = 0.15915494309189535;
  static_assert(rope_theta == 1e7);
  const double turns = position * (exp2(-j * log2_theta_by_pairs) * one_by_two_pi);
  float2 rotation;
  sincospif(2.0F * static_cast<float>(turns - rint(turns)), &rotation.x, &rotation.y);
  return rotation;
}

template <int heads, int kv_heads>
__global__ __launch_bounds__(32 * attention_heads_warps<heads, kv_heads>) void attention_heads_kernel(
    AttentionPrefill call, std::size_t layer_offset) {
  constexpr int dim = Shape::attention_head_dim;
  constexpr int pairs = Shape::rotary_dim / 2;
  constexpr int warps = attention_heads_warps<heads, kv_heads>;
  __shared__ float2 rotations[pairs];
  const int token = static_cast<int>(blockIdx.x);
  const int position = call.position + token;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (warp == 0) rotations[lane] = rope_rotation(position, lane);
  __syncthreads();

  wait_for_predecessor();
  const __half* const row = call.projected + static_cast<std::size_t>(token) * call.stride;
  __nv_bfloat16* const cached =
      call.pages[position / page_positions] + layer_offset + position % page_positions * dim + 8 * lane;
  for (int unit = warp; unit < heads + 2 * kv_heads; unit += warps) {
    const bool is_query = unit < heads;
    const bool is_value = unit >= heads + kv_heads;
    const int kv_unit = unit - heads;  // k heads, then v heads
    const int column = (is_query ? 2 * unit : 2 * heads + kv_unit) * dim + 8 * lane;
    const uint4 halves = *reinterpret_cast<const uint4*>(row + column);
    float x[8];
    const std::uint32_t words[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = unpack_half(words[i]);
      x[2 * i] = two.x;
      x[2 * i + 1] = two.y;
    }
    if (!is_value) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) squares += x[i] * x[i];
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) squares += __shfl_xor_sync(~0U, squares, distance);
      const float scale = rsqrtf(squares / dim + rms_norm_epsilon);
      const float* const gain = (is_query ? call.query_norm : call.key_norm) + 8 * lane;
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] *= scale * gain[i];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float other = __shfl_xor_sync(~0U, x[i], 4);  // the other of the pair, 32 values away
        if (lane >= 8) continue;
        const float2 rotation = rotations[lane % 4 * 8 + i];
        x[i] = x[i] * rotation.y + (lane < 4 ? -other : other) * rotation.x;
      }
    }
    const uint4 rounded = {pack_bfloat16(x[0], x[1]), pack_bfloat16(x[2], x[3]), pack_bfloat16(x[4], x[5]),
                           pack_bfloat16(x[6], x[7])};
    void* to = call.y + (static_cast<std::size_t>(token) * heads + unit) * dim + 8 * lane;
    if (!is_query) to = cached + (kv_unit % kv_heads * 2 + (is_value ? 1 : 0)) * page_positions * dim;
    *reinterpret_cast<uint4*>(to) = rounded;
  }
}

}  // namespace calla::cuda
