// RMS norm and RoPE of one head of q or k, by a SIMD-group.
//
// Value i of a lane is dim lane + 32 * i of the head: loads are of neighbours, and a lane has both dims of
// the pair (lane, lane + 32) that RoPE turns. The angles' (cos, sin) come from the host, [context][32], as
// kernels cannot compute them well enough.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

enum : uint { head_values = head_dim / 32, rotary_pairs = rotary_dim / 2 };

/// x = turn(head * gain / sqrt(mean(head^2) + 1e-6)), `turns` the row of the table for the head's position.
inline void load_head(thread float* x,
                      device const float* head,
                      device const float* gain,
                      device const float2* turns,
                      uint lane) {
  float squares = 0.0f;
#pragma clang loop unroll(full)
  for (uint i = 0; i < head_values; ++i) {
    x[i] = head[lane + 32 * i];
    squares = fma(x[i], x[i], squares);
  }
  const float scale = precise::rsqrt(simd_sum(squares) / float(head_dim) + 1e-6f);
#pragma clang loop unroll(full)
  for (uint i = 0; i < head_values; ++i) x[i] *= scale * gain[lane + 32 * i];
  const float2 turn = turns[lane];
  const float low = x[0];
  const float high = x[1];
  x[0] = fma(low, turn.x, -(high * turn.y));
  x[1] = fma(high, turn.x, low * turn.y);
}

}  // namespace calla_kernels
