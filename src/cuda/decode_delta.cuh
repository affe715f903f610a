// Gated DeltaNet of decode, what is the same for a token and for some in a row.
//
//   q, k, v = silu(causal convolution over 4 tokens), q and k divided by their length, q / sqrt(128)
//   S = decay S + k (beta (v - (decay S)' k))',  o = S' q,  decay = exp(-exp(A_log) softplus(a + dt_bias)),
//   beta = sigmoid(b);  with both products taken of the old state:  o = decay S'q + (k.q) u.
//   mixed = gain silu(z) o, which lacks the factor 1 / rms(o): the sums of o^2 go to `squares`.
// Shapes: state [head][128 of v][128 of k] float; a block has 32 columns (of v) of a head, a warp four, a
// thread four elements of each. All float32. Where a compiler may or may not fuse a product with a sum it is
// told, so that a token has the same bits whichever kernel it is in.
#pragma once
#include <cuda_runtime.h>

#include "cuda/linear.cuh"
#include "model/shape.h"

namespace calla::cuda::delta_step {

constexpr int head_dim = Shape::delta_head_dim;
constexpr int taps = Shape::convolution_taps;
constexpr int threads = 256;
constexpr int warps = threads / warp_threads;
constexpr int columns_of_warp = 4;
constexpr int columns_of_block = warps * columns_of_warp;
constexpr int lanes_of_column = warp_threads / columns_of_warp;
constexpr int parts = head_dim / columns_of_block;
static_assert(columns_of_warp == 4);

/// Where things begin in a row of the projection.
template <Shape S>
struct Offsets {
  static constexpr int key = S.delta_key_dim();
  static constexpr int value = 2 * S.delta_key_dim();
  static constexpr int z = S.convolution_channels();
  static constexpr int a = z + S.delta_value_dim();
  static constexpr int b = a + S.delta_value_heads;
  static constexpr int columns = b + S.delta_value_heads;
};

/// The convolution's sum over the taps before the token, for its inputs three, two and one token before it.
__device__ inline float earlier_taps(const float4& w, float three, float two, float one) {
  return fmaf(w.z, one, fmaf(w.y, two, __fmul_rn(w.x, three)));
}

/// What makes a unit vector of a key with this sum of squares, or a query of its length.
__device__ inline float inverse_length(float squared, bool is_key) {
  constexpr float query_scale = 0.08838834764831845F;  // 1 / sqrt(128)
  const float inverse = rsqrtf(squared + 1e-6F);
  return is_key ? inverse : __fmul_rn(inverse, query_scale);
}
/// The sum of squares from those of the warps that have a part of the vector.
__device__ inline float sum_of_half(const float* lengths) {
  static_assert(warps / 2 == 4);
  return lengths[0] + lengths[1] + lengths[2] + lengths[3];
}

__device__ inline float dot(const float4& a, const float4& b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, __fmul_rn(a.x, b.x))));
}

/// Of eight values of every lane the warp's sums: lanes 4 i .. 4 i + 3 get that of value i. Each step halves
/// the values that a lane still has, so there are nine exchanges and not forty.
__device__ inline float sum_of_own(const float (&values)[8]) {
  const int lane = lane_id();
  float four[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool upper = (lane & 16) != 0;
    four[i] = (upper ? values[i + 4] : values[i]) +
              __shfl_xor_sync(0xFFFFFFFFU, upper ? values[i] : values[i + 4], 16);
  }
  float two[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool upper = (lane & 8) != 0;
    two[i] = (upper ? four[i + 2] : four[i]) + __shfl_xor_sync(0xFFFFFFFFU, upper ? four[i] : four[i + 2], 8);
  }
  const bool upper = (lane & 4) != 0;
  float one = (upper ? two[1] : two[0]) + __shfl_xor_sync(0xFFFFFFFFU, upper ? two[0] : two[1], 4);
  one += __shfl_xor_sync(0xFFFFFFFFU, one, 2);
  one += __shfl_xor_sync(0xFFFFFFFFU, one, 1);
  return one;
}

/// Where a block's part of a slot's state begins, and a thread's elements of it.
__device__ inline float* state_of_block(float* of_layer, int head, int part) {
  return of_layer +
         (static_cast<std::size_t>(head) * head_dim + static_cast<std::size_t>(part * columns_of_block)) *
             head_dim;
}
__device__ inline void load_state(float4 (&s)[columns_of_warp], const float* of_block) {
#pragma unroll
  for (int c = 0; c < columns_of_warp; ++c)
    s[c] =
        reinterpret_cast<const float4*>(of_block + (warp_id() * columns_of_warp + c) * head_dim)[lane_id()];
}
__device__ inline void store_state(const float4 (&s)[columns_of_warp], float* of_block) {
#pragma unroll
  for (int c = 0; c < columns_of_warp; ++c)
    reinterpret_cast<float4*>(of_block + (warp_id() * columns_of_warp + c) * head_dim)[lane_id()] = s[c];
}

/// What a step makes of a lane's own column: all lanes of a column have the same.
struct Output {
  float o;
  float u;
};

/// The products with the old state, and what follows from them. `value`: of the lane's own column.
__device__ inline Output output_of(const float4 (&s)[columns_of_warp], const float4& k, const float4& q,
                                   float kq, float value, float beta, float decay) {
  float products[2 * columns_of_warp];  // S'k and S'q of each column
#pragma unroll
  for (int c = 0; c < columns_of_warp; ++c) {
    products[2 * c] = dot(s[c], k);
    products[2 * c + 1] = dot(s[c], q);
  }
  const float product = sum_of_own(products);
  const float partner = __shfl_xor_sync(0xFFFFFFFFU, product, lanes_of_column / 2);
  const bool has_key = lane_id() % lanes_of_column < lanes_of_column / 2;
  const float sk = has_key ? product : partner;
  const float sq = has_key ? partner : product;
  const float u = __fmul_rn(beta, fmaf(-decay, sk, value));
  return {fmaf(kq, u, __fmul_rn(decay, sq)), u};
}

/// The new state.
__device__ inline void advance(float4 (&s)[columns_of_warp], const float4& k, float own_u, float decay) {
#pragma unroll
  for (int c = 0; c < columns_of_warp; ++c) {
    const float u = __shfl_sync(0xFFFFFFFFU, own_u, c * lanes_of_column);
    s[c] = {fmaf(k.x, u, __fmul_rn(decay, s[c].x)), fmaf(k.y, u, __fmul_rn(decay, s[c].y)),
            fmaf(k.z, u, __fmul_rn(decay, s[c].z)), fmaf(k.w, u, __fmul_rn(decay, s[c].w))};
  }
}

/// The sum of o^2 over a warp's columns.
__device__ inline float squares_of_warp(float o) {
  float sum = __fmul_rn(o, o);
#pragma unroll
  for (int distance = lanes_of_column; distance < warp_threads; distance *= 2)
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
  return sum;
}

}  // namespace calla::cuda::delta_step
