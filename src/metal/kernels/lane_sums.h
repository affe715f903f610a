// Many sums over a SIMD-group at once. Here as elsewhere loops over a thread's arrays are unrolled: an array
// stays in registers only where every index is a constant.
#pragma once
#include <metal_stdlib>

using namespace metal;

namespace calla_kernels {

/// Halves the values that a lane holds sums of: lanes with the bit COUNT go on with the upper COUNT of 2 *
/// COUNT values, the others with the lower, each adding its partner's.
template <uint COUNT>
inline void fold(thread float* x, uint lane) {
  const bool upper = (lane & COUNT) != 0;
#pragma clang loop unroll(full)
  for (uint i = 0; i < COUNT; ++i) {
    const float kept = upper ? x[i + COUNT] : x[i];
    const float sent = upper ? x[i] : x[i + COUNT];
    x[i] = kept + simd_shuffle_xor(sent, COUNT);
  }
}

/// Sums of 16 values over each half of a SIMD-group: a lane gets that of value lane % 16 over the 16 lanes of
/// its half. 15 shuffles, where 16 separate sums take 64. Spoils x.
inline float half_sums(thread float* x, uint lane) {
  fold<8>(x, lane);
  fold<4>(x, lane);
  fold<2>(x, lane);
  fold<1>(x, lane);
  return x[0];
}

}  // namespace calla_kernels
