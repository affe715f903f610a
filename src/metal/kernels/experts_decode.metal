// The mixture of experts of a row, from the router's logits on.
//
//   experts_up:    inner[i] = silu(G_e n) * (U_e n) for the row's eight experts e = route[i];  n as in
//                  router.metal
//   experts_down:  h += sum_i share_i D_e inner[i] + share_shared D shared_inner,  u and square_sums
//   share = softmax over the eight logits,  share_shared = sigmoid(its logit)
//
// experts_up: 64 threads, four rows of G and U a SIMD-group, two at once. Each finds its expert itself, by as
// many rounds as it takes; one threadgroup a row goes on to write the route. experts_down: 96 threads, 8
// columns of h; each of the three SIMD-groups takes three of the nine matrices, half of its lanes four rows
// of one. The nine are added in their order. Float32 throughout. Moves (35B, a row) 9.4 and 5.3 MB of
// weights. Live floats a thread: 60. Bound by memory.
#include <metal_stdlib>

#include "metal/kernels/activations.h"
#include "metal/kernels/affine.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/decode_grids.h"
#include "metal/kernels/decode_product.h"
#include "metal/kernels/decode_route.h"
#include "metal/kernels/decode_swiglu.h"
#include "metal/kernels/residual.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

enum : uint {
  up_rows = 2,  // of G and of U at once
  simd_up_rows = uint(experts_up_rows) / (experts_up_threads / 32),
  down_products = uint(experts_per_token) + 1,  // the last is the shared expert's
  simd_products = down_products / (experts_down_threads / 32),
  down_lanes = 16,  // that share a row
  down_rows = uint(experts_down_rows) / (32 / down_lanes),
};
static_assert(simd_products * (experts_down_threads / 32) == uint(down_products),
              "SIMD-groups have equal parts");
static_assert(experts_down_rows == uint(square_columns),
              "a threadgroup has the columns of one sum of squares");

kernel void experts_up(device const uint4* gate_words [[buffer(0)]],  // [experts][expert_hidden][hidden / 32]
                       device const ushort* gate_scales [[buffer(1)]],
                       device const ushort* gate_biases [[buffer(2)]],
                       device const uint4* up_words [[buffer(3)]],  // the same
                       device const ushort* up_scales [[buffer(4)]],
                       device const ushort* up_biases [[buffer(5)]],
                       device const float* u [[buffer(6)]],              // [rows][hidden]
                       device const float* square_sums [[buffer(7)]],    // [rows][hidden / square_columns]
                       device const float* router_logits [[buffer(8)]],  // [rows][experts + 1]
                       device float* inner [[buffer(9)]],                // [rows][8][expert_hidden]
                       device Route* routes [[buffer(10)]],              // [rows]
                       uint3 threadgroup_index [[threadgroup_position_in_grid]],
                       uint simd [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  const uint choice = threadgroup_index.y;
  const uint row = threadgroup_index.z;
  device const float* logits = router_logits + row * (experts + 1);

  // Lane i keeps the i-th choice.
  LaneLogits rest;
  load(rest, logits, lane);
  Choice best = take_best(rest, lane);
  const float peak = best.logit;
  Choice own = best;
  for (uint i = 1; i <= choice; ++i) {
    best = take_best(rest, lane);
    if (lane == i) own = best;
  }
  if (choice == experts_per_token - 1 && threadgroup_index.x == 0 && simd == 0) {
    const float weight = lane < experts_per_token ? precise::exp(own.logit - peak) : 0.0f;
    const float share = weight / simd_sum(weight);
    if (lane < experts_per_token) {
      routes[row].expert[lane] = own.expert;
      routes[row].share[lane] = share;
    }
    if (lane == 0) routes[row].shared = sigmoid(logits[experts]);
  }

  NormScales<1> norm;
  load<1>(norm, square_sums + row * stream_sums, lane);
  const uint first = threadgroup_index.x * experts_up_rows + simd * simd_up_rows;
  device float* out = inner + (row * experts_per_token + choice) * expert_hidden;
  for (uint i = first; i < first + simd_up_rows; i += up_rows) {
    Sums<up_rows, 1> results;
    swiglu_product(results, Matrix{gate_words, gate_scales, gate_biases},
                   Matrix{up_words, up_scales, up_biases}, best.expert * expert_hidden + i, u + row * hidden,
                   norm, lane);
    if (lane == 0) {
#pragma clang loop unroll(full)
      for (uint j = 0; j < up_rows; ++j) out[i + j] = results.of[j][0];
    }
  }
}

kernel void experts_down(device const uint4* words [[buffer(0)]],  // [experts][hidden][expert_hidden / 32]
                         device const ushort* scales [[buffer(1)]],
                         device const ushort* biases [[buffer(2)]],
                         device const uint4* shared_words [[buffer(3)]],  // [hidden][shared_hidden / 32]
                         device const ushort* shared_scales [[buffer(4)]],
                         device const ushort* shared_biases [[buffer(5)]],
                         device const float* inner [[buffer(6)]],         // [rows][8][expert_hidden]
                         device const float* shared_inner [[buffer(7)]],  // [rows][shared_hidden]
                         device const Route* routes [[buffer(8)]],        // [rows]
                         device float* h [[buffer(9)]],                   // [rows][hidden]
                         device const float* gain [[buffer(10)]],
                         device float* u [[buffer(11)]],            // [rows][hidden]
                         device float* square_sums [[buffer(12)]],  // [rows][hidden / square_columns]
                         uint3 threadgroup_index [[threadgroup_position_in_grid]],
                         uint simd [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, results, uint(down_products) * experts_down_rows);
  const uint first = threadgroup_index.x * experts_down_rows;
  const uint row = threadgroup_index.y;
  device const Route& route = routes[row];
  const uint place = lane % down_lanes;
  const uint own_row = lane / down_lanes * down_rows;

#pragma clang loop unroll(full)
  for (uint i = 0; i < simd_products; ++i) {
    const uint product = simd * simd_products + i;
    Sums<down_rows, 1> sums;
    clear(sums);
    if (product < experts_per_token) {
      device const float* x = inner + (row * experts_per_token + product) * expert_hidden;
      add_product<4, expert_hidden, down_lanes>(sums, Matrix{words, scales, biases},
                                                route.expert[product] * hidden + first + own_row, x, place);
    } else {
      add_product<4, shared_hidden, down_lanes>(sums, Matrix{shared_words, shared_scales, shared_biases},
                                                first + own_row, shared_inner + row * shared_hidden, place);
    }
#pragma clang loop unroll(full)
    for (uint j = 0; j < down_rows; ++j) {
      float sum = sums.of[j][0];
#pragma clang loop unroll(full)
      for (uint distance = 1; distance < down_lanes; distance *= 2) sum += simd_shuffle_xor(sum, distance);
      if (place == 0) results[product * experts_down_rows + own_row + j] = sum;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simd != 0) return;

  const bool taken = lane < experts_down_rows;
  float sum = 0.0f;
  if (taken) {
#pragma clang loop unroll(full)
    for (uint i = 0; i < experts_per_token; ++i)
      sum = fma(route.share[i], results[i * experts_down_rows + lane], sum);
    sum = fma(route.shared, results[(down_products - 1) * uint(experts_down_rows) + lane], sum);
  }
  add_to_stream(Stream{h, gain, u, square_sums}, row, first + lane % experts_down_rows, sum, taken);
}
