// The checkpoint's quantised format as the kernels decode it (model/affine.h): w = s * q + b, q of 4 or 8
// bits, packed from the lowest bits on, with a scale s and a bias b for each `group` columns. Nothing else
// looks into a word.
//
// On the older GPUs shifts and conversions of integers run at a quarter of the rate of all else. So codes are
// masked where they lie, which gives them times a power of two, and become floats by putting them into the
// mantissa of 2^23. The powers are taken back, exactly, by the factors that whatever is multiplied with the
// codes gets beforehand: once for many codes.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/bfloat16.h"
#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

/// Three tensors of one matrix, or of a stack of them, row-major. Words lie on 16 bytes.
struct Matrix {
  device const uint4* words;
  device const ushort* scales;
  device const ushort* biases;
};

/// Integers below 2^23 as floats.
inline float4 exact_floats(uint4 x) { return as_type<float4>(x | uint4(0x4b000000U)) - float4(8388608.0f); }

/// Four codes of 4 bits from bit 0 on, as 1, 16, 256 and 4096 times their values.
inline float4 nibbles(uint bits) { return exact_floats(uint4(bits) & uint4{0xfU, 0xf0U, 0xf00U, 0xf000U}); }
inline float4 nibble_factors() { return float4{1.0f, 1.0f / 16, 1.0f / 256, 1.0f / 4096}; }

/// The four codes of 8 bits of a word, the second and the fourth as 256 times their values.
inline float4 bytes(uint word) {
  const uint upper = word >> 16;
  return exact_floats(uint4{word, word, upper, upper} & uint4{0xffU, 0xff00U, 0xffU, 0xff00U});
}
inline float4 byte_factors() { return float4{1.0f, 1.0f / 256, 1.0f, 1.0f / 256}; }

/// Codes of BITS bits in 16 bytes, which a lane loads at once. They are of one group.
template <uint BITS>
struct Codes {
  enum : uint {
    chunk_columns = 128 / BITS,
    chunk_quads = chunk_columns / 4,
    group_chunks = uint(group) / chunk_columns,
  };
  static_assert(BITS == 4 || BITS == 8, "the checkpoint has no others");

  /// Codes 4 * index .. 4 * index + 3 of a chunk, to be multiplied by factors().
  static inline float4 quad(uint4 words, uint index) {
    if (BITS == 8) return bytes(words[index]);
    return nibbles(index % 2 == 0 ? words[index / 2] : words[index / 2] >> 16);
  }
  static inline float4 factors() { return BITS == 8 ? byte_factors() : nibble_factors(); }
};

/// Four weights from the lowest 16 bits of 4-bit codes, rounded once: the product is exact.
inline float4 dequantised(uint bits, float scale, float bias) {
  return fma(nibbles(bits), float4(scale) * nibble_factors(), float4(bias));
}

}  // namespace calla_kernels
