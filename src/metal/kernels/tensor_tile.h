// A tile's product by the GPU's tensor units. x and W are rounded to bfloat16, to nearest even, so that
// neither can overflow; exact products, summed in float32. Each operand is off by up to 2^-9 of itself: a
// result by up to 2^-8 of the sum of its products' magnitudes, and, as roundings are of both signs, by about
// 2^-9 / sqrt(columns) of it.
//
// The four SIMD-groups multiply together, 64 columns at a time; the hardware keeps the sums where it likes,
// 32 floats a thread of 64 rows. 16 KB of threadgroup memory. Each kernel has one height of tile whatever the
// number of rows: the order of a sum is the operation's, and one operation always has the same.
#pragma once
#include <metal_stdlib>
#include <metal_tensor>

#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

#include "metal/kernels/gemm_tile.h"
#include "metal/kernels/prefill_arguments.h"

using namespace metal;

namespace calla_kernels {

template <uint ROWS>
struct TensorTile {
  enum : uint {
    rows = ROWS,
    depth = group,  // columns at a time
    steps = depth / uint(step_columns),
    operand_quads = depth / 4,                                   // from row to row of an operand, bfloat4
    result_stride = gemm_columns,                                // floats from row to row of the results
    operand_memory = (ROWS + gemm_columns) * operand_quads / 2,  // in float4: x, then W
    result_memory = ROWS * gemm_columns / 4,                     // the same, behind the product
    quads = operand_memory > result_memory ? operand_memory : result_memory,
  };

  /// The product over all columns. The results, [ROWS][result_stride], are in `memory` when it returns.
  static inline void product(threadgroup float4* memory,
                             thread const TileRows<ROWS>& tile_rows,
                             thread const WeightRow& weights,
                             uint columns,
                             uint,
                             uint thread_index,
                             uint) {
    using namespace mpp::tensor_ops;
    using Operand = tensor<threadgroup bfloat, dextents<int32_t, 2>, tensor_inline>;
    using Results = tensor<threadgroup float, dextents<int32_t, 2>, tensor_inline>;
    constexpr auto descriptor = matmul2d_descriptor(ROWS, gemm_columns, depth, false, true, false,
                                                    matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<descriptor, execution_simdgroups<gemm_threads / 32>> multiply;

    threadgroup bfloat4* x = (threadgroup bfloat4*)memory;
    threadgroup bfloat4* w = x + ROWS * operand_quads;
    // Extents are columns, then rows.
    Operand left((threadgroup bfloat*)x, dextents<int32_t, 2>(int32_t(depth), int32_t(ROWS)));
    Operand right((threadgroup bfloat*)w, dextents<int32_t, 2>(int32_t(depth), int32_t(gemm_columns)));
    auto sums = multiply.template get_destination_cooperative_tensor<Operand, Operand, float>();
#pragma clang loop unroll(full)
    for (uint16_t i = 0; i < sums.get_capacity(); ++i) sums[i] = 0.0f;

    for (uint step = 0; step < columns / step_columns; step += steps) {
      for (uint part = 0; part < steps; ++part) {
        load_rows<ROWS>(x + part * step_quads, operand_quads, tile_rows, step + part, thread_index);
        load_weights<4>(w + part * step_quads, operand_quads, weights, step + part, thread_index);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply.run(left, right, sums);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    Results out((threadgroup float*)memory, dextents<int32_t, 2>(int32_t(gemm_columns), int32_t(ROWS)));
    sums.store(out);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
};

}  // namespace calla_kernels
