// What prefill's Gated DeltaNet does around the scan of the state, token by token.
#include <metal_stdlib>

#include "metal/kernels/activations.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/mixer_arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

namespace {

constant float rsqrt_delta_dim = 0.08838834764f;

enum : uint {
  head_quads = delta_dim / 4,  // of a head's dims, one a lane
  channel_quads = channels / 4,
  projected_quads = delta_projected / 4,
};

/// Four neighbouring channels of the convolution, as it goes from token to token.
struct Convolution {
  uint quad;       // which channels
  float4 taps[4];  // oldest first
  float4 past[3];  // the inputs of the last three tokens
};

/// The inputs of a token; of one before the first, from the window.
inline float4 convolution_input(
    device const float4* projected, device const float4* window, uint first_position, int token, uint quad) {
  if (token >= 0) return projected[uint(token) * projected_quads + quad];
  return window[(first_position + uint(token)) % window_rows * channel_quads + quad];
}

inline void start_convolution(thread Convolution& state,
                              device const float4* projected,
                              device const float4* window,
                              device const float4* conv,
                              uint first_position,
                              uint token,
                              uint quad) {
  const float4 x = conv[4 * quad];
  const float4 y = conv[4 * quad + 1];
  const float4 z = conv[4 * quad + 2];
  const float4 w = conv[4 * quad + 3];
  state.quad = quad;
#pragma clang loop unroll(full)
  for (uint i = 0; i < 4; ++i) state.taps[i] = float4{x[i], y[i], z[i], w[i]};
#pragma clang loop unroll(full)
  for (uint i = 0; i < 3; ++i)
    state.past[i] = convolution_input(projected, window, first_position, int(token + i) - 3, quad);
}

/// Takes the next token's inputs.
inline float4 convolve(thread Convolution& state, float4 x) {
  const float4 y = fma(
      x, state.taps[3],
      fma(state.past[2], state.taps[2], fma(state.past[1], state.taps[1], state.past[0] * state.taps[0])));
  state.past[0] = state.past[1];
  state.past[1] = state.past[2];
  state.past[2] = x;
  return float4{silu(y.x), silu(y.y), silu(y.z), silu(y.w)};
}

/// x / sqrt(sum x^2 + 1e-6) over the SIMD-group, times `scale`.
inline float4 l2_normalise(float4 x, float scale) {
  return x * (scale * precise::rsqrt(simd_sum(dot(x, x)) + 1e-6f));
}

}  // namespace

// Convolution, norms and gates: all that the scan needs of a token and that does not depend on the state.
//
//   c = silu(conv(inputs p-3 .. p)),  q = c_q / (|c_q| sqrt(128)),  k = c_k / |c_k|,  v = c_v
//   decay = exp(-exp(a_log) softplus(a + dt_bias)),  beta = sigmoid(b);  and q.k, which saves the scan a sum
//
// 128 threads; a SIMD-group takes eight tokens of q and k of a key head, or of v and the gates of a value
// head, so that of the inputs 11 rows are read for 8 tokens. All float32. Moves 32 KB a token of the 35B in
// (45 from cache) and 32 KB out; live floats a thread: 56 of two convolutions. Bound by memory.
kernel void delta_prepare(device const float4* projected [[buffer(0)]],  // [tokens][q | k | v | z | b | a]
                          device const float4* window [[buffer(1)]],  // the slot's: [window_rows][channels]
                          device const float4* conv [[buffer(2)]],    // [channels], oldest tap first
                          device const float* a_log [[buffer(3)]],    // [delta_value_heads]
                          device const float* dt_bias [[buffer(4)]],  // [delta_value_heads]
                          device float4* qkv [[buffer(5)]],           // [tokens][channels]
                          device float2* gates [[buffer(6)]],    // [tokens][delta_value_heads] (decay, beta)
                          device float* overlaps [[buffer(7)]],  // [tokens][delta_key_heads] q.k
                          constant DeltaPrefillArguments& args [[buffer(8)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint simd [[simdgroup_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  const uint head = group.x * (delta_prepare_threads / 32) + simd;  // the key heads, then the value heads
  const uint first = group.y * delta_prepare_tokens;
  const uint last = min(first + delta_prepare_tokens, args.tokens);

  if (head < delta_key_heads) {
    Convolution q_state;
    Convolution k_state;
    const uint quad = head * head_quads + lane;
    start_convolution(q_state, projected, window, conv, args.position, first, quad);
    start_convolution(k_state, projected, window, conv, args.position, first, delta_key_dim / 4 + quad);
    for (uint token = first; token < last; ++token) {
      device const float4* inputs = projected + token * projected_quads;
      device float4* out = qkv + token * channel_quads;
      const float4 q = l2_normalise(convolve(q_state, inputs[q_state.quad]), rsqrt_delta_dim);
      const float4 k = l2_normalise(convolve(k_state, inputs[k_state.quad]), 1.0f);
      const float overlap = simd_sum(dot(q, k));
      out[q_state.quad] = q;
      out[k_state.quad] = k;
      if (lane == 0) overlaps[token * delta_key_heads + head] = overlap;
    }
    return;
  }

  const uint value_head = head - delta_key_heads;
  Convolution state;
  start_convolution(state, projected, window, conv, args.position, first,
                    2 * delta_key_dim / 4 + value_head * head_quads + lane);
  for (uint token = first; token < last; ++token) {
    const float4 input = projected[token * projected_quads + state.quad];
    qkv[token * channel_quads + state.quad] = convolve(state, input);
  }
  const uint token = first + lane;
  if (token < last) {
    device const float* b =
        (device const float*)(projected + token * projected_quads) + channels + delta_value_dim;
    const float a = b[delta_value_heads + value_head];
    const float decay = precise::exp(-precise::exp(a_log[value_head]) * softplus(a + dt_bias[value_head]));
    gates[token * delta_value_heads + value_head] = float2{decay, sigmoid(b[value_head])};
  }
}

// Puts the inputs of the last four tokens where the tokens after them look for them. 128 threads, each with
// four channels; 128 KB in and out, next to the scan.
kernel void delta_window(device const float4* projected [[buffer(0)]],  // [tokens][q | k | v | z | b | a]
                         device float4* window [[buffer(1)]],           // the slot's: [window_rows][channels]
                         constant DeltaPrefillArguments& args [[buffer(2)]],
                         uint quad [[thread_position_in_grid]]) {
  for (uint token = args.tokens - min(args.tokens, uint(window_rows)); token < args.tokens; ++token) {
    window[(args.position + token) % window_rows * channel_quads + quad] =
        projected[token * projected_quads + quad];
  }
}

// The gated norm of a head's output, in place:  mixed = o / sqrt(mean(o^2) + 1e-6) * norm * silu(z).
//
// 128 threads, a SIMD-group a head and token, four dims a lane. All float32. Moves 32 KB a token of the 35B
// in and 16 KB out. Bound by memory.
kernel void delta_gate(device const float4* projected [[buffer(0)]],  // [tokens][q | k | v | z | b | a]
                       device const float4* norm [[buffer(1)]],       // [delta_dim], the gain
                       device float4* mixed [[buffer(2)]],  // [tokens][delta_value_dim]: o, then the result
                       uint3 group [[threadgroup_position_in_grid]],
                       uint simd [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  const uint quad = (group.x * (delta_gate_threads / 32) + simd) * head_quads + lane;
  device float4* out = mixed + group.y * (delta_value_dim / 4) + quad;
  const float4 o = *out;
  const float4 z = projected[group.y * projected_quads + channel_quads + quad];
  const float scale = precise::rsqrt(simd_sum(dot(o, o)) / float(delta_dim) + 1e-6f);
  *out = o * scale * norm[lane] * float4{silu(z.x), silu(z.y), silu(z.z), silu(z.w)};
}
