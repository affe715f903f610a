// What all kernels take for granted of a GPU, and no document promises: which threads are a SIMD-group, and
// which elements of a matrix a lane holds. Run at the program's start; self_test.cpp knows the results.
#include <metal_stdlib>

#include "metal/kernels/simd_matrix.h"

using namespace metal;
using namespace calla_kernels;

// places [thread] = 32 times the number of its SIMD-group, and its lane. One threadgroup of whole
// SIMD-groups.
kernel void simd_places(device uint* places [[buffer(0)]],
                        uint thread_index [[thread_index_in_threadgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  places[thread_index] = 32 * simd + lane;
}

// A matrix on its ways into a SIMD-group and out of it, and a product of what has come both ways: all of a
// lane's elements are those that simd_matrix.h says. 32 threads, a SIMD-group.
kernel void matrix_elements(device const float* x [[buffer(0)]],   // [8][8]
                            device float* loaded [[buffer(1)]],    // = x
                            device float* stored [[buffer(2)]],    // = x
                            device float* products [[buffer(3)]],  // = x x^T + x
                            uint lane [[thread_index_in_simdgroup]]) {
  const uint at = 8 * element_row(lane) + element_column(lane);
  simdgroup_float8x8 by_load;
  simdgroup_load(by_load, x, 8);
  const float2 pair = get_elements(by_load);
  loaded[at] = pair.x;
  loaded[at + 1] = pair.y;

  simdgroup_float8x8 by_lane;
  set_elements(by_lane, x[at], x[at + 1]);
  simdgroup_store(by_lane, stored, 8);

  simdgroup_float8x8 turned;
  simdgroup_load(turned, x, 8, ulong2(0UL), true);
  simdgroup_float8x8 sums;
  simdgroup_multiply_accumulate(sums, by_lane, turned, by_load);
  simdgroup_store(sums, products, 8);
}
