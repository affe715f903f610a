// bfloat16 in memory, float32 in arithmetic.
#pragma once
#include <metal_stdlib>

namespace calla_kernels {

inline float bf16_to_float(ushort bits) { return as_type<float>(uint(bits) << 16); }

/// Two neighbours in memory, of which one word was loaded.
inline float bf16_low(uint pair) { return as_type<float>(pair << 16); }
inline float bf16_high(uint pair) { return as_type<float>(pair & 0xffff0000U); }

/// The nearest bfloat16, to even where two are as near. Not for NaN, which nothing here stores.
inline uint bf16_bits(float x) {
  const uint bits = as_type<uint>(x);
  return (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
}
inline float round_to_bf16(float x) { return as_type<float>(bf16_bits(x) << 16); }

/// The word that has both, `low` first in memory. Whole words are what threads may store side by side.
inline uint bf16_pair(float low, float high) { return bf16_bits(low) | (bf16_bits(high) << 16); }

}  // namespace calla_kernels
