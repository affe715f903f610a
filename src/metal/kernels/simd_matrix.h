// Which elements of an 8 x 8 matrix of a SIMD-group a lane holds. Apple does not document it, but it has been
// so on all GPUs of the M line, and what everyone's kernels rest on; all that knows it is here.
#pragma once
#include <metal_stdlib>

using namespace metal;

namespace calla_kernels {

/// A lane has two neighbours of a row: (row, column) and (row, column + 1).
inline uint element_row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
inline uint element_column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

inline void set_elements(thread simdgroup_float8x8& matrix, float first, float second) {
  matrix.thread_elements()[0] = first;
  matrix.thread_elements()[1] = second;
}
inline float2 get_elements(thread simdgroup_float8x8& matrix) {
  return float2{matrix.thread_elements()[0], matrix.thread_elements()[1]};
}

}  // namespace calla_kernels
