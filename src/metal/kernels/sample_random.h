// Philox4x32-10 of model/philox.h: the n-th number of a stream.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/sample_values.h"

using namespace metal;

namespace calla_kernels {

/// Uniform in [0, 1), a multiple of 2^-53.
inline Share uniform_share(uint seed_low, uint seed_high, uint n) {
  uint4 counter = uint4{n, 0U, 0U, 0U};
  uint2 key = uint2{seed_low, seed_high};
  for (uint round = 0; round < 10; ++round) {
    const uint high0 = mulhi(0xd2511f53U, counter.x);
    const uint low0 = 0xd2511f53U * counter.x;
    const uint high1 = mulhi(0xcd9e8d57U, counter.z);
    const uint low1 = 0xcd9e8d57U * counter.z;
    counter = uint4{high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0};
    key += uint2{0x9e3779b9U, 0xbb67ae85U};
  }
  return Share{counter.x, counter.y & 0xfffff800U};
}

}  // namespace calla_kernels
