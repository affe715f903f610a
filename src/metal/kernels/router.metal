// What a layer's mixture of experts begins with: the router, and the shared expert's first half.
//
//   router:     router_logits[r] = [W; w] n[r],  w the shared expert's gate, 8 bits
//   shared_up:  shared_inner[r] = silu(G n[r]) * (U n[r]),  4 bits
//   n = u / sqrt(mean h^2 + 1e-6)
//
// 64 threads; a row of W, or one of G and the same of U, a SIMD-group: both run at once, and what counts is
// that all cores take part. R rows of u. Float32 throughout. Moves (35B) 0.56 and 1.2 MB of weights; u comes
// from caches, for each row four times as much. Live floats a thread: 35 of R = 1, 85 of R = 4. Bound by
// latency.
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/decode_grids.h"
#include "metal/kernels/decode_product.h"
#include "metal/kernels/decode_swiglu.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

static_assert(router_rows == router_threads / 32 && shared_up_rows == shared_up_threads / 32,
              "a row a SIMD-group");

template <uint R>
kernel void router(device const uint4* router_words [[buffer(0)]],  // [experts][hidden / 16]
                   device const ushort* router_scales [[buffer(1)]],
                   device const ushort* router_biases [[buffer(2)]],
                   device const uint4* gate_words [[buffer(3)]],  // [1][hidden / 16]
                   device const ushort* gate_scales [[buffer(4)]],
                   device const ushort* gate_biases [[buffer(5)]],
                   device const float* u [[buffer(6)]],            // [R][hidden]
                   device const float* square_sums [[buffer(7)]],  // [R][hidden / square_columns]
                   device float* router_logits [[buffer(8)]],      // [R][experts + 1]
                   uint3 threadgroup_index [[threadgroup_position_in_grid]],
                   uint simd [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
  const uint row = threadgroup_index.x * router_rows + simd;
  if (row > experts) return;
  Matrix matrix = {router_words, router_scales, router_biases};
  if (row == experts) matrix = Matrix{gate_words, gate_scales, gate_biases};

  NormScales<R> norm;
  load<R>(norm, square_sums, lane);
  Sums<1, R> sums;
  clear(sums);
  add_product<8, hidden, 32>(sums, matrix, row == experts ? 0 : row, u, lane);
  add_lanes(sums);
  if (lane == 0) {
#pragma clang loop unroll(full)
    for (uint r = 0; r < R; ++r) router_logits[r * (experts + 1) + row] = norm.of[r] * sums.of[0][r];
  }
}
INSTANTIATE("router_1", router<1>)
INSTANTIATE("router_2", router<2>)
INSTANTIATE("router_4", router<4>)

template <uint R>
kernel void shared_up(device const uint4* gate_words [[buffer(0)]],  // [shared_hidden][hidden / 32]
                      device const ushort* gate_scales [[buffer(1)]],
                      device const ushort* gate_biases [[buffer(2)]],
                      device const uint4* up_words [[buffer(3)]],  // [shared_hidden][hidden / 32]
                      device const ushort* up_scales [[buffer(4)]],
                      device const ushort* up_biases [[buffer(5)]],
                      device const float* u [[buffer(6)]],            // [R][hidden]
                      device const float* square_sums [[buffer(7)]],  // [R][hidden / square_columns]
                      device float* shared_inner [[buffer(8)]],       // [R][shared_hidden]
                      uint3 threadgroup_index [[threadgroup_position_in_grid]],
                      uint simd [[simdgroup_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]]) {
  const uint row = threadgroup_index.x * shared_up_rows + simd;
  NormScales<R> norm;
  load<R>(norm, square_sums, lane);
  Sums<1, R> inner;
  swiglu_product(inner, Matrix{gate_words, gate_scales, gate_biases}, Matrix{up_words, up_scales, up_biases},
                 row, u, norm, lane);
  if (lane == 0) {
#pragma clang loop unroll(full)
    for (uint r = 0; r < R; ++r) shared_inner[r * shared_hidden + row] = inner.of[0][r];
  }
}
INSTANTIATE("shared_up_1", shared_up<1>)
INSTANTIATE("shared_up_2", shared_up<2>)
INSTANTIATE("shared_up_4", shared_up<4>)
