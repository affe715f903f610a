// The gated delta rule over the tokens of a prefill, one after the other.
//
//   S = g S;  u = beta (v - S^T k);  S = S + k u^T;  o = S^T q = (g S)^T q + (k q) u
//
// Both products are taken of the old state, so that one exchange between lanes serves both. 64 threads; a
// SIMD-group has 8 value columns of a head in registers from the first token to the last, half of it four
// columns, a lane 8 keys of each: the state [head][value][key] is read and written once. A token's arithmetic
// is the same wherever a piece begins or ends. All float32. Moves 2 MB of state in and out for the 35B, and
// of each token 32 KB in and 16 KB out; q and k come from caches to the 16 blocks of their value heads, 512
// KB a token. Live floats a thread: 32 of the state, 38 of this token and the next, 8 of sums.
//
// Bound by instructions: of the state a lane has 128 multiply-adds and multiplications a token, of all else
// some 60, 13 of them shuffles; 512 SIMD-groups in all. The chunked (WY) form in chunks of 32 has 57,000 to
// 66,000 multiply-adds a token and head, by how many of its triangles' zeros it skips, where this has 65,536.
// simdgroup_matrix has no more of them a clock than fma, and the chunks want their operands in threadgroup
// memory, barriers, and a triangular inverse: counted so, it gains nothing without tensor units. Neither has
// been timed on Apple's hardware.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/lane_sums.h"
#include "metal/kernels/mixer_arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

namespace {

enum : uint {
  block_columns = uint(delta_dim) / delta_blocks,
  lane_columns = block_columns / 2,  // a lane's value columns
  key_lanes = 16,                    // lanes that share them
  key_quads = delta_dim / 4,         // the keys as float4: a lane has key_lane and key_lane + key_lanes
  channel_quads = channels / 4,
};

/// What a lane needs of a token.
struct Token {
  float4 q[2];
  float4 k[2];
  float v;        // of value column lane % lane_columns
  float2 gates;   // (decay, beta)
  float overlap;  // q.k
};

/// Where a lane finds it.
struct Source {
  device const float4* q;
  device const float4* k;
  device const float* v;
  device const float2* gates;
  device const float* overlaps;
};

inline Token load(thread const Source& from, uint token) {
  device const float4* q = from.q + token * channel_quads;
  device const float4* k = from.k + token * channel_quads;
  Token result;
#pragma clang loop unroll(full)
  for (uint i = 0; i < 2; ++i) {
    result.q[i] = q[i * key_lanes];
    result.k[i] = k[i * key_lanes];
  }
  result.v = from.v[token * channels];
  result.gates = from.gates[token * delta_value_heads];
  result.overlap = from.overlaps[token * delta_key_heads];
  return result;
}

}  // namespace

kernel void delta_scan(device const float4* qkv [[buffer(0)]],    // [tokens][channels], of delta_prepare
                       device const float2* gates [[buffer(1)]],  // [tokens][delta_value_heads] (decay, beta)
                       device const float* overlaps [[buffer(2)]],  // [tokens][delta_key_heads] q.k
                       device float4* state [[buffer(3)]],          // the slot's: [head][value][key]
                       device float* mixed [[buffer(4)]],           // [tokens][delta_value_dim]: o
                       constant DeltaPrefillArguments& args [[buffer(5)]],
                       uint3 group [[threadgroup_position_in_grid]],
                       uint simd [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  const uint block = group.x * (delta_scan_threads / 32) + simd;  // of all heads
  const uint head = block / delta_blocks;
  const uint key_head = head * delta_key_heads / delta_value_heads;
  const uint key_lane = lane % key_lanes;
  const uint half_lane = lane - key_lane;  // the first lane with the same value columns
  const uint first_column = block * block_columns + lane / key_lanes * lane_columns;  // of all heads
  const uint column = first_column + lane % lane_columns;

  device float4* rows = state + first_column * key_quads + key_lane;
  float4 s[lane_columns][2];
#pragma clang loop unroll(full)
  for (uint c = 0; c < lane_columns; ++c)
#pragma clang loop unroll(full)
    for (uint i = 0; i < 2; ++i) s[c][i] = rows[c * key_quads + i * key_lanes];

  device const float4* q = qkv + key_head * key_quads + key_lane;
  const Source source = {q, q + delta_key_dim / 4, (device const float*)qkv + 2 * delta_key_dim + column,
                         gates + head, overlaps + key_head};
  Token next = load(source, 0);
  for (uint token = 0; token < args.tokens; ++token) {
    const Token now = next;
    next = load(source, min(token + 1, args.tokens - 1));  // under way while this one is computed

    // Sums 0 .. 3 are S^T k of the columns, 4 .. 7 S^T q: lane l gets that of l % 8, and its column's other
    // one.
    float sums[2 * lane_columns];
#pragma clang loop unroll(full)
    for (uint c = 0; c < lane_columns; ++c) {
      sums[c] = dot(s[c][0], now.k[0]) + dot(s[c][1], now.k[1]);
      sums[lane_columns + c] = dot(s[c][0], now.q[0]) + dot(s[c][1], now.q[1]);
    }
    fold<4>(sums, lane);
    fold<2>(sums, lane);
    fold<1>(sums, lane);
    const float sum = sums[0] + simd_shuffle_xor(sums[0], 8);
    const float other = simd_shuffle_xor(sum, lane_columns);
    const bool has_q = (lane & lane_columns) != 0;
    const float decay = now.gates.x;
    const float beta = now.gates.y;
    const float update = beta * (now.v - decay * (has_q ? other : sum));
    const float o = fma(now.overlap, update, decay * (has_q ? sum : other));
    if (key_lane < lane_columns) mixed[token * delta_value_dim + column] = o;

#pragma clang loop unroll(full)
    for (uint c = 0; c < lane_columns; ++c) {
      const float4 u = float4(simd_shuffle(update, half_lane + c));
#pragma clang loop unroll(full)
      for (uint i = 0; i < 2; ++i) s[c][i] = fma(now.k[i], u, decay * s[c][i]);
    }
  }
#pragma clang loop unroll(full)
  for (uint c = 0; c < lane_columns; ++c)
#pragma clang loop unroll(full)
    for (uint i = 0; i < 2; ++i) rows[c * key_quads + i * key_lanes] = s[c][i];
}
