// One token of Gated DeltaNet: convolution, norms, and the step of the state of every value head.
//
//   c = silu(conv(inputs p-3 .. p)),  q = c_q / (|c_q| sqrt(128)),  k = c_k / |c_k|,  v = c_v
//   S = g S;  u = beta (v - S^T k);  S = S + k u^T;  o = S^T q = (g S)^T q + (k q) u
//   g = exp(-exp(a_log) softplus(a + dt_bias)),  beta = sigmoid(b),  mixed = o * norm * silu(z)
//
// Grid (delta_value_heads * delta_blocks, rows), 32 threads: a SIMD-group has 8 value columns of a head, and
// computes the q, k, g and beta that it needs for itself, 8 channels a lane: no threadgroup memory, no
// barrier. The state is [head][value][key], lane l with keys 4 l .. 4 l + 3 of every column. All float32.
// Moves 4 KB of state a threadgroup in and out again (4.2 MB a row of the 35B), and some 8 KB of inputs and
// taps from cache. Live floats a thread: 32 of the state, 8 of q and k, 16 of sums. Bound by memory.
#include <metal_stdlib>

#include "metal/kernels/activations.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/lane_sums.h"
#include "metal/kernels/mixer_grids.h"
#include "metal/kernels/shape.h"
#include "metal/kernels/slots.h"

using namespace metal;
using namespace calla_kernels;

enum : uint {
  columns = uint(delta_dim) / delta_blocks,  // of a threadgroup
  key_quads = delta_dim / 4,                 // the keys of a column, as float4: one a lane
};
constant float rsqrt_delta_dim = 0.08838834764f;

/// The convolution of a channel and SiLU: the inputs of positions p - 3 .. p, and the taps in the same order.
static inline float convolve(float x3, float x2, float x1, float x, float4 taps) {
  return silu(fma(x, taps.w, fma(x1, taps.z, fma(x2, taps.y, x3 * taps.x))));
}

/// Where the window has the inputs of `age` positions ago. Before the first position there are zeros.
static inline uint window_row(uint position, uint age) {
  return (position + window_rows - age) % window_rows * channels;
}

/// Channels 4 quad .. 4 quad + 3.
static inline float4 convolve_quad(
    device const float* window, float4 x, device const float4* conv, uint quad, uint position) {
  const float4 x3 = ((device const float4*)(window + window_row(position, 3)))[quad];
  const float4 x2 = ((device const float4*)(window + window_row(position, 2)))[quad];
  const float4 x1 = ((device const float4*)(window + window_row(position, 1)))[quad];
  return float4{convolve(x3.x, x2.x, x1.x, x.x, conv[4 * quad]),
                convolve(x3.y, x2.y, x1.y, x.y, conv[4 * quad + 1]),
                convolve(x3.z, x2.z, x1.z, x.z, conv[4 * quad + 2]),
                convolve(x3.w, x2.w, x1.w, x.w, conv[4 * quad + 3])};
}

/// x / sqrt(sum x^2 + 1e-6) over the SIMD-group, times `scale`.
static inline float4 l2_normalise(float4 x, float scale) {
  return x * (scale * precise::rsqrt(simd_sum(dot(x, x)) + 1e-6f));
}

kernel void delta_step(device const float* projected [[buffer(0)]],  // [rows][q | k | v | z | b | a]
                       device float* windows [[buffer(1)]],          // a slot's: [window_rows][channels]
                       device float4* states [[buffer(2)]],          // a slot's: [head][value][key]
                       device const float4* conv [[buffer(3)]],      // [channels], oldest tap first
                       device const float* a_log [[buffer(4)]],      // [heads]
                       device const float* dt_bias [[buffer(5)]],    // [heads]
                       device const float* norm [[buffer(6)]],       // [delta_dim], the gain
                       device const SlotState* slots [[buffer(7)]],
                       device float* mixed [[buffer(8)]],      // [rows][delta_value_dim]
                       device float* head_sums [[buffer(9)]],  // [rows][heads][delta_blocks]
                       constant DeltaArguments& args [[buffer(10)]],
                       uint3 group [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]]) {
  const uint head = group.x / delta_blocks;
  const uint block = group.x % delta_blocks;
  const uint row = group.y;
  const uint slot = args.slots[row];
  const uint column = lane % columns;                              // the lanes' place among the value columns
  const uint value = head * delta_dim + block * columns + column;  // and in v, z and the result
  device float* out = mixed + row * delta_value_dim + value;
  device float* out_sum = head_sums + (row * delta_value_heads + head) * delta_blocks + block;
  if (!is_live(slot, slots)) {
    if (lane < columns) *out = 0.0f;
    if (lane == 0) *out_sum = 0.0f;
    return;
  }

  // The state is asked for first: it comes from memory, all else from caches.
  device float4* state =
      states + slot * (args.state_stride / 4) + (head * delta_dim + block * columns) * key_quads + lane;
  float4 s[columns];
#pragma clang loop unroll(full)
  for (uint c = 0; c < columns; ++c) s[c] = state[c * key_quads];

  const uint position = slots[slot].position;
  device const float* inputs = projected + row * delta_projected;
  device float* window = windows + slot * args.window_stride;
  const uint key_head = head * delta_key_heads / delta_value_heads;
  const uint q_quad = key_head * key_quads + lane;
  const uint k_quad = delta_key_dim / 4 + q_quad;
  const uint v_channel = 2 * delta_key_dim + value;
  const float4 q_input = ((device const float4*)inputs)[q_quad];
  const float4 k_input = ((device const float4*)inputs)[k_quad];
  const float v_input = inputs[v_channel];
  const float4 q = l2_normalise(convolve_quad(window, q_input, conv, q_quad, position), rsqrt_delta_dim);
  const float4 k = l2_normalise(convolve_quad(window, k_input, conv, k_quad, position), 1.0f);
  const float v =
      convolve(window[window_row(position, 3) + v_channel], window[window_row(position, 2) + v_channel],
               window[window_row(position, 1) + v_channel], v_input, conv[v_channel]);
  const float z = inputs[channels + value];
  const float b = inputs[channels + delta_value_dim + head];
  const float a = inputs[channels + delta_value_dim + delta_value_heads + head];
  const float decay = precise::exp(-precise::exp(a_log[head]) * softplus(a + dt_bias[head]));
  const float beta = sigmoid(b);

  // Sums 0 .. 7 are S^T k of the columns, 8 .. 15 S^T q: lane l has that of l % 16, and gets its column's
  // other one.
  float sums[2 * columns];
#pragma clang loop unroll(full)
  for (uint c = 0; c < columns; ++c) {
    s[c] *= decay;
    sums[c] = dot(s[c], k);
    sums[columns + c] = dot(s[c], q);
  }
  float sum = half_sums(sums, lane);
  sum += simd_shuffle_xor(sum, 16);
  const float other = simd_shuffle_xor(sum, columns);
  const bool has_q = (lane & columns) != 0;
  const float update = beta * (v - (has_q ? other : sum));
  const float o = fma(simd_sum(dot(k, q)), update, has_q ? sum : other);

#pragma clang loop unroll(full)
  for (uint c = 0; c < columns; ++c) state[c * key_quads] = fma(k, float4(simd_shuffle(update, c)), s[c]);

  float squares = o * o;
  for (uint distance = 1; distance < columns; distance *= 2) squares += simd_shuffle_xor(squares, distance);
  if (lane == 0) *out_sum = squares;

  // The current inputs join the window: of v here, of q and k by the first of the value heads that share
  // them. Their place has the oldest position's inputs, which this step does not need.
  device float* newest = window + window_row(position, 0);
  if (lane < columns) {
    *out = o * norm[block * columns + column] * silu(z);
    newest[v_channel] = v_input;
  }
  if (head % (delta_value_heads / delta_key_heads) == 0 && lane / 2 == block) {
    ((device float4*)newest)[q_quad] = q_input;
    ((device float4*)newest)[k_quad] = k_input;
  }
}
