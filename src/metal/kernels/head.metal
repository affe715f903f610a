// The logits of the decode pass's rows.
//
//   logits[slot of r] = W u[r] / sqrt(mean h[r]^2 + 1e-6)
//   peaks[slot of r][rows / head_rows] = the largest of head_rows neighbours, the lowest id among equals;
//                                        infinite where one of them is not finite
//
// 128 threads, 16 rows of W a SIMD-group, of which lane i keeps the i-th result; R rows of u. Rows without a
// slot, or whose slot has ended, write nothing. Float32 throughout. Moves the weights once (35B: 286 MB); u
// comes from caches. Live floats a thread: 55 of R = 1, 85 of R = 2 and 4. Bound by memory for R = 1, by
// instructions for R = 4.
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/decode_grids.h"
#include "metal/kernels/decode_product.h"
#include "metal/kernels/finite.h"
#include "metal/kernels/shape.h"
#include "metal/kernels/slots.h"

using namespace metal;
using namespace calla_kernels;

enum : uint {
  simds = uint(head_threads) / 32,
  simd_rows = uint(head_rows) / simds,
  head_tiles = uint(vocabulary) / head_rows,
};
static_assert(simd_rows <= 32, "a lane keeps one result");
constant float no_logit = -3.4e38f;

template <uint R>
kernel void head(device const uint4* words [[buffer(0)]],  // [vocabulary][hidden / 32]
                 device const ushort* scales [[buffer(1)]],
                 device const ushort* biases [[buffer(2)]],
                 device const float* u [[buffer(3)]],            // [R][hidden]
                 device const float* square_sums [[buffer(4)]],  // [R][hidden / square_columns]
                 device float* logits [[buffer(5)]],             // [slot][vocabulary]
                 device Peak* peaks [[buffer(6)]],               // [slot][vocabulary / head_rows]
                 device const SlotState* slots [[buffer(7)]],
                 constant StepRows& args [[buffer(8)]],
                 uint3 threadgroup_index [[threadgroup_position_in_grid]],
                 uint thread_index [[thread_index_in_threadgroup]],
                 uint simd [[simdgroup_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, best_logits, uint(simds) * R);
  TG_ARRAY(uint, best_tokens, R * simds);
  const uint rows = RowsAtOnce<R>::value;
  const uint first = threadgroup_index.x * head_rows + simd * simd_rows;
  const Matrix matrix = {words, scales, biases};

  NormScales<R> norm;
  load<R>(norm, square_sums, lane);
  float own[R];
#pragma clang loop unroll(full)
  for (uint r = 0; r < R; ++r) own[r] = no_logit;
  for (uint row = 0; row < simd_rows; row += rows) {
    Sums<rows, R> sums;
    clear(sums);
    add_product<4, hidden, 32>(sums, matrix, first + row, u, lane);
    add_lanes(sums);
#pragma clang loop unroll(full)
    for (uint i = 0; i < rows; ++i)
#pragma clang loop unroll(full)
      for (uint r = 0; r < R; ++r)
        if (lane == row + i) own[r] = norm.of[r] * sums.of[i][r];
  }

#pragma clang loop unroll(full)
  for (uint r = 0; r < R; ++r) {
    // A maximum passes over NaN.
    const float counted = is_finite(own[r]) ? own[r] : as_type<float>(0x7f800000U);
    const float best = simd_max(counted);
    const uint token = simd_min(counted == best ? first + lane : uint(vocabulary));
    if (lane == 0) {
      best_logits[r * simds + simd] = best;
      best_tokens[r * simds + simd] = token;
    }
    const uint slot = args.slots[r];
    // What a slot ended with is what its snapshots hold.
    if (lane < simd_rows && is_live(slot, slots)) logits[slot * vocabulary + first + lane] = own[r];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index >= R || !is_live(args.slots[thread_index], slots)) return;

  // SIMD-groups have ascending ids: the first of the best has the lowest.
  uint best = thread_index * simds;
  for (uint i = best + 1; i < (thread_index + 1) * simds; ++i)
    if (best_logits[i] > best_logits[best]) best = i;
  device Peak& peak = peaks[args.slots[thread_index] * head_tiles + threadgroup_index.x];
  peak.logit = best_logits[best];
  peak.token = best_tokens[best];
}
INSTANTIATE("head_1", head<1>)
INSTANTIATE("head_2", head<2>)
INSTANTIATE("head_4", head<4>)
