// The first products of a layer's mixer, of up to four matrices at once.
//
//   out[r] = W u[r] / sqrt(mean h[r]^2 + 1e-6),  W the rows of all four one after another
//
// 64 threads, four rows of W a SIMD-group, 8 rows a threadgroup, which lie in one matrix; R rows of u. A
// matrix that is not there has an empty range. Float32 throughout. Moves the weights once (35B: 14.2 MB of
// DeltaNet, 10.6 MB of attention); u comes from caches, for each row twice as much. Live floats a thread: 55
// of R = 1, 85 of R = 2 and 4. Bound by memory for R = 1, by instructions (three a weight, and one more for
// each row) for R = 4.
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/decode_grids.h"
#include "metal/kernels/decode_product.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

template <uint R>
kernel void project(device const uint4* words0 [[buffer(0)]],  // [rows][hidden / 32]
                    device const ushort* scales0 [[buffer(1)]],
                    device const ushort* biases0 [[buffer(2)]],
                    device const uint4* words1 [[buffer(3)]],
                    device const ushort* scales1 [[buffer(4)]],
                    device const ushort* biases1 [[buffer(5)]],
                    device const uint4* words2 [[buffer(6)]],
                    device const ushort* scales2 [[buffer(7)]],
                    device const ushort* biases2 [[buffer(8)]],
                    device const uint4* words3 [[buffer(9)]],
                    device const ushort* scales3 [[buffer(10)]],
                    device const ushort* biases3 [[buffer(11)]],
                    device const float* u [[buffer(12)]],            // [R][hidden]
                    device const float* square_sums [[buffer(13)]],  // [R][hidden / square_columns]
                    device float* out [[buffer(14)]],                // [R][ends[3]]
                    constant ProjectArguments& args [[buffer(15)]],
                    uint3 threadgroup_index [[threadgroup_position_in_grid]],
                    uint simd [[simdgroup_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]]) {
  const uint simd_rows = project_rows / (project_threads / 32);
  const uint rows = RowsAtOnce<R>::value;
  const uint first = threadgroup_index.x * project_rows + simd * simd_rows;

  Matrix matrix = {words0, scales0, biases0};
  uint begin = 0;
  if (first >= args.ends[2]) {
    matrix = Matrix{words3, scales3, biases3};
    begin = args.ends[2];
  } else if (first >= args.ends[1]) {
    matrix = Matrix{words2, scales2, biases2};
    begin = args.ends[1];
  } else if (first >= args.ends[0]) {
    matrix = Matrix{words1, scales1, biases1};
    begin = args.ends[0];
  }

  NormScales<R> norm;
  load<R>(norm, square_sums, lane);
  for (uint row = first; row < first + simd_rows; row += rows) {
    Sums<rows, R> sums;
    clear(sums);
    add_product<4, hidden, 32>(sums, matrix, row - begin, u, lane);
    add_lanes(sums);
    if (lane == 0) {
#pragma clang loop unroll(full)
      for (uint r = 0; r < R; ++r)
#pragma clang loop unroll(full)
        for (uint i = 0; i < rows; ++i) out[r * args.ends[3] + row + i] = norm.of[r] * sums.of[i][r];
    }
  }
}
INSTANTIATE("project_1", project<1>)
INSTANTIATE("project_2", project<2>)
INSTANTIATE("project_4", project<4>)
