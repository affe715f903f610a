// Kernels for the tests of the simulator itself.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

struct ScaleArguments {
  uint count;
  float factor;
};

// y[i] = factor * x[i] for i < count.
kernel void example_scale(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                          constant ScaleArguments& args [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  if (i < args.count) y[i] = x[i] * args.factor;
}

// sums[group] = the sum of THREADS values. Threadgroups of THREADS threads.
template <uint THREADS>
kernel void example_sum(device const float* x [[buffer(0)]], device float* sums [[buffer(1)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, partial, THREADS / 32);
  const float sum = simd_sum(x[group.x * THREADS + thread_index]);
  if (lane == 0) partial[simd] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index == 0) {
    float total = 0.0f;
    for (uint i = 0; i < THREADS / 32; ++i) total += partial[i];
    sums[group.x] = total;
  }
}
INSTANTIATE("example_sum_64", example_sum<64>)
INSTANTIATE("example_sum_1024", example_sum<1024>)

// d = a b of 8 x 8 matrices, b transposed in memory; and the same in half precision.
kernel void example_matrix(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                           device float* d [[buffer(2)]], device float4* swizzled [[buffer(3)]],
                           uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_matrix<float, 8, 8> left;
  simdgroup_matrix<float, 8, 8> right;
  simdgroup_load(left, a, 8);
  simdgroup_load(right, b, 8, ulong2(0UL, 0UL), true);
  simdgroup_matrix<float, 8, 8> product = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  simdgroup_multiply_accumulate(product, left, right, product);
  simdgroup_store(product, d, 8);
  if (lane == 0) {
    float4 v = float4{1.0f, 2.0f, 3.0f, 4.0f};
    v.xy = v.zw * 2.0f + v.xx;
    swizzled[0] = v;
    swizzled[1] = float4(uint4(v.wzyx) >> 1U);
    swizzled[2] = select(v, float4(0.0f), v > 4.0f);
    swizzled[3] = fma(v, v, float4(float2(half2(v.xy)), v.zw));
  }
}

// numbers[i] = how many threads came before thread i.
kernel void example_order(device atomic_uint* count [[buffer(0)]], device uint* numbers [[buffer(1)]],
                          uint i [[thread_position_in_grid]]) {
  numbers[i] = atomic_fetch_add_explicit(count, 1U, memory_order_relaxed);
}
