// Logits as the sampling kernels compare and weigh them.
//
// Weights are exp((x - largest) / temperature), in (0, 1]. There is no double, so they are added up as
// integers, in units of 2^-44: any order of adding gives the same sum, 2^18 of them fit 64 bits, and what is
// cut off of all of them together is below 2^-26 of the largest.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/finite.h"
#include "metal/kernels/sample_arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

enum : uint {
  token_bits = 22,
  token_mask = (1U << token_bits) - 1,
  entry_bits = 32 + token_bits,
};
static_assert(uint(vocabulary) <= token_mask, "an entry has room for a token");
static_assert(uint(vocabulary) <= 1U << 18, "the sum of all weights fits 64 bits");

constant float no_value = -1e30f;  // of a token that is never drawn

/// An integer in the order of the floats, above 0. Zeros are equal.
inline uint order_key(float value) {
  const uint bits = as_type<uint>(value + 0.0f);
  return bits ^ (bits >> 31 != 0 ? 0xffffffffU : 0x80000000U);
}
inline float key_value(uint key) {
  return as_type<float>(key ^ (key >> 31 != 0 ? 0x80000000U : 0xffffffffU));
}

/// A token and its value as one integer: the larger value is the larger one, the lower id among equals.
inline ulong entry_of(uint key, uint token) { return ulong(key) << token_bits | (token_mask - token); }
inline uint entry_key(ulong entry) { return uint(entry >> token_bits); }
inline uint entry_token(ulong entry) { return token_mask - (uint(entry) & token_mask); }

/// How fast weights fall: log2(e) / temperature as the sum of two floats.
struct Scale {
  float high;
  float low;
};
inline Scale natural_scale() { return Scale{1.44269502f, 1.92596299e-8f}; }  // temperature 1

/// 2^(scale * distance) for a distance <= 0, to about an ulp: a Taylor series on [-1/2, 1/2], so that chips
/// do not differ. A large distance would cost digits of the product, which is kept in two floats.
inline float weight(float distance, Scale scale) {
  const float high = distance * scale.high;
  if (!(high > -126.0f)) return 0.0f;
  const float low = fma(distance, scale.high, -high) + distance * scale.low;
  const float whole = rint(high);
  const float x = (high - whole) + low;
  float y = 1.5252734e-5f;
  y = fma(y, x, 1.5403530e-4f);
  y = fma(y, x, 1.3333558e-3f);
  y = fma(y, x, 9.6181291e-3f);
  y = fma(y, x, 5.5504109e-2f);
  y = fma(y, x, 2.4022651e-1f);
  y = fma(y, x, 6.9314718e-1f);
  y = fma(y, x, 1.0f);
  return y * as_type<float>(uint(int(whole) + 127) << 23);
}

/// A sum of weights as an integer.
inline ulong mass_of(float weights) { return ulong(weights * as_type<float>((127U + mass_bits) << 23)); }

/// The weights of a row.
struct Weights {
  float peak;  // the largest value
  Scale scale;

  ulong mass(uint key) const { return mass_of(weight(key_value(key) - peak, scale)); }
};

/// Whether value - peak >= min_p_high + min_p_low. The difference is exact as the sum of two floats; near the
/// border that of the high parts is exact, too.
inline bool is_common(float value, float peak, device const SlotSampling& s) {
  const float high = value - peak;
  const float back = high - value;
  const float low = (value - (high - back)) - (peak + back);
  return (high - s.min_p_high) + (low - s.min_p_low) >= 0.0f;
}

/// A share in units of 2^-64.
struct Share {
  uint high;
  uint low;
};

/// share * total, rounded down.
inline ulong share_of(ulong total, Share share) {
  const ulong high = total >> 32;
  const ulong low = total & 0xffffffffUL;
  const ulong middle = high * share.low + (low * share.low >> 32);
  const ulong rest = low * share.high + (middle & 0xffffffffUL);
  return high * share.high + (middle >> 32) + (rest >> 32);
}

}  // namespace calla_kernels
