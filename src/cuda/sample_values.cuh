// Logits as the sampling kernels compare, weigh and read them.
#pragma once
#include <cstdint>

#include "cuda/sample.h"

namespace calla::cuda {

inline constexpr unsigned all_lanes = 0xFFFFFFFF;
inline constexpr float no_value = -__builtin_huge_valf();

/// An unsigned integer in the order of the floats. Zeros are equal.
__device__ inline std::uint32_t order_key(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0F);
  return bits ^ (bits >> 31 != 0 ? 0xFFFFFFFF : 0x80000000);
}
__device__ inline float key_value(std::uint32_t key) {
  return __uint_as_float(key ^ (key >> 31 != 0 ? 0x80000000 : 0xFFFFFFFF));
}
inline constexpr std::uint32_t lowest_key = 0x00800000;  // of finite values

/// A token and its value as one integer: the larger value first, the lower id among equals.
__device__ inline std::uint64_t rank_entry(float value, int token) {
  return std::uint64_t{order_key(value)} << 32 | ~static_cast<std::uint32_t>(token);
}
__device__ inline int entry_token(std::uint64_t entry) {
  return static_cast<int>(~static_cast<std::uint32_t>(entry));
}
__device__ inline float entry_value(std::uint64_t entry) {
  return key_value(static_cast<std::uint32_t>(entry >> 32));
}

/// log2 e / temperature in two floats.
struct Scale {
  float high;
  float low;
};
inline constexpr Scale natural_scale{1.44269502F, 1.92596299e-8F};

/// 2^(scale distance) for a distance <= 0, with the relative error of one exponential of the special function
/// unit (2^-22.5): the product is kept in two floats, or a large distance would cost digits.
__device__ inline float weight(float distance, Scale scale) {
  const float high = distance * scale.high;
  if (!(high > -126.0F)) return 0;
  const float low = fmaf(distance, scale.high, -high) + distance * scale.low;
  const float whole = rintf(high);
  return exp2f((high - whole) + low) * __int_as_float((static_cast<int>(whole) + 127) << 23);
}

/// The values of a row that may be drawn.
struct RowValues {
  const float* data;
  int count;

  /// Of four neighbours, the first a multiple of four.
  __device__ float4 four(int token) const {
    float4 v = *reinterpret_cast<const float4*>(data + token);
    if (token + 3 >= count) {
      v.x = token < count ? v.x : no_value;
      v.y = token + 1 < count ? v.y : no_value;
      v.z = token + 2 < count ? v.z : no_value;
      v.w = no_value;
    }
    return v;
  }
};

}  // namespace calla::cuda
