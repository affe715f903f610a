// What the machine can do at most, to put measured speeds beside.
#include <metal_stdlib>

#include "metal/kernels/machine_arguments.h"

using namespace metal;
using namespace calla_kernels;

// sums[thread] = the sum of the words that a thread has read. Grid (n), neighbouring threads read
// neighbouring 16 bytes, four loads under way in each: bound by memory alone.
kernel void read_words(device const uint4* words [[buffer(0)]],
                       device uint* sums [[buffer(1)]],
                       constant ReadArguments& args [[buffer(2)]],
                       uint3 at [[thread_position_in_grid]],
                       uint3 groups [[threadgroups_per_grid]]) {
  const uint stride = groups.x * read_threads;
  uint4 sum = uint4(0U);
  uint i = at.x;
  for (; i + 3 * stride < args.count; i += 4 * stride) {
    const uint4 a = words[i];
    const uint4 b = words[i + stride];
    const uint4 c = words[i + 2 * stride];
    const uint4 d = words[i + 3 * stride];
    sum += (a + b) + (c + d);
  }
  for (; i < args.count; i += stride) sum += words[i];
  sums[at.x] = sum.x + sum.y + sum.z + sum.w;
}

// out[SIMD-group] [8][8] = rounds * product_chains * 8 with ones in both factors: products of 8 x 8 x 8 in
// registers, product_chains of them independent of each other: bound by the multipliers alone.
kernel void multiply_tiles(device float* out [[buffer(0)]],
                           constant ProductArguments& args [[buffer(1)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint simd [[simdgroup_index_in_threadgroup]]) {
  const simdgroup_matrix<float, 8, 8> left = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  const simdgroup_matrix<float, 8, 8> right = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
  simdgroup_matrix<float, 8, 8> sums[product_chains];
  for (uint chain = 0; chain < product_chains; ++chain)
    sums[chain] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint round = 0; round < args.rounds; ++round) {
    for (uint chain = 0; chain < product_chains; ++chain)
      simdgroup_multiply_accumulate(sums[chain], left, right, sums[chain]);
  }
  // Each chain counts, or the compiler would leave it out.
  for (uint chain = 1; chain < product_chains; ++chain) {
    simdgroup_multiply_accumulate(sums[0], sums[chain], left, sums[0]);
  }
  simdgroup_store(sums[0], out + (group.x * (product_threads / 32) + simd) * 64, 8);
}
