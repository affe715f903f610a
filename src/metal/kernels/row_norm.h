// RMS norm of a row by a threadgroup of row_threads threads.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

enum : uint {
  row_quads = hidden / 4,
  row_simds = row_threads / 32,
};

/// 1 / sqrt(mean x^2 + epsilon) of a row, from each thread's sum of squares: the same for all threads, in an
/// order that the row's width alone decides. `sums`: row_simds floats.
inline float row_scale(float squares, threadgroup float* sums, uint simd, uint lane) {
  squares = simd_sum(squares);
  if (lane == 0) sums[simd] = squares;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint i = 0; i < row_simds; ++i) sum += sums[i];
  return precise::rsqrt(sum / float(hidden) + 1e-6f);
}

}  // namespace calla_kernels
