// From 4-bit codes to half fragments: the one place that knows the nibbles.
#pragma once
#include <cstdint>

#include <cuda_fp16.h>

#include "cuda/ptx.cuh"

namespace calla::cuda {

__device__ inline __half2 as_half2(std::uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }
__device__ inline std::uint32_t as_bits(__half2 value) {
  return *reinterpret_cast<const std::uint32_t*>(&value);
}

/// The A fragment of a word of a tile, its codes 0 .. 15 as exact half values. 1024 + q is the half with q in
/// its lowest bits; 1024 + 16 q the one with q four bits higher.
__device__ inline void unpack_codes(std::uint32_t word, std::uint32_t (&a)[4]) {
  const __half2 low_magic = as_half2(0x64006400);   // 1024
  const __half2 sixteenth = as_half2(0x2C002C00);   // 1 / 16
  const __half2 high_magic = as_half2(0xD400D400);  // -64
  const std::uint32_t shifted = word >> 8;
  a[0] = as_bits(__hsub2(as_half2(and_or<0x000F000F, 0x64006400>(word)), low_magic));
  a[1] = as_bits(__hfma2(as_half2(and_or<0x00F000F0, 0x64006400>(word)), sixteenth, high_magic));
  a[2] = as_bits(__hsub2(as_half2(and_or<0x000F000F, 0x64006400>(shifted)), low_magic));
  a[3] = as_bits(__hfma2(as_half2(and_or<0x00F000F0, 0x64006400>(shifted)), sixteenth, high_magic));
}

/// The A fragment of two words of a tile for m16n8k32, as bytes: a word's low nibbles are the codes of row g,
/// four neighbours in the order 2 t, 2 t + 8, 2 t + 1, 2 t + 9; its high ones are those of row g + 8, which
/// stay where they are, 16 times as large.
__device__ inline void codes_as_bytes(std::uint32_t first, std::uint32_t second, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t low_nibbles = 0x0F0F0F0F;
  a[0] = first & low_nibbles;
  a[1] = first & ~low_nibbles;
  a[2] = second & low_nibbles;
  a[3] = second & ~low_nibbles;
}

/// The halves of a {scale, bias} pair, bfloat16, as float.
__device__ inline float scale_of(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float bias_of(std::uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000U); }

}  // namespace calla::cuda
