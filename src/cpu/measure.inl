// What the machine can do at best, for benchmarks to compare with.
#pragma once
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace calla::cpu {
namespace {

// Independent, so that no instruction waits for another's result.
#if defined(__AVX512F__)
constexpr int chains = 12;
#else
constexpr int chains = 6;
#endif

float spin_floats(std::int64_t rounds) {
  Floats sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = splat(static_cast<float>(i));
  const Floats factor = splat(0.5F);
  for (; rounds > 0; --rounds) {
#pragma GCC unroll 12
    for (Floats& s : sums) s = fma(s, factor, factor);
  }
  Floats total = sums[0];
  for (int i = 1; i < chains; ++i) total = total + sums[i];
  return sum(total);
}

std::int32_t spin_products(std::int64_t rounds) {
#if defined(__AVX512F__)
  __m512i sums[chains] = {};
  const __m512i w = _mm512_set1_epi8(3);
  for (; rounds > 0; --rounds) {
    for (__m512i& s : sums) {
      s = _mm512_dpbusd_epi32(s, w, w);
      asm volatile("" : "+v"(s));
    }
  }
  return _mm512_reduce_add_epi32(sums[0]);
#elif defined(__AVX2__)
  __m256i sums[chains] = {};
  __m256i w = _mm256_set1_epi8(3);
  for (; rounds > 0; --rounds) {
    for (__m256i& s : sums) {
      asm volatile("" : "+x"(w));
      s = _mm256_add_epi16(s, _mm256_maddubs_epi16(w, w));
      s = _mm256_add_epi16(s, _mm256_maddubs_epi16(w, w));
      asm volatile("" : "+x"(s));
    }
  }
  return _mm256_extract_epi16(sums[0], 0);
#else
  Ints sums[chains];
  for (int i = 0; i < chains; ++i) sums[i] = splat_int(i);
  for (; rounds > 0; --rounds) {
    for (Ints& s : sums) {
      for (int c = 0; c < 4; ++c) s = each<Ints>([&](int n) { return s.v[n] * s.v[n] + c; });
    }
  }
  return sums[0].v[0][0];
#endif
}

std::int32_t read_lines(const std::byte* data, std::size_t lines) {
  Ints sums[2] = {splat_int(0), splat_int(0)};
  for (std::size_t i = 0; i + 2 <= lines; i += 2) {
    sums[0] = sums[0] + load_ints(data + 64 * i);
    sums[1] = sums[1] + load_ints(data + 64 * i + 64);
  }
  std::int32_t lane[lanes];
  const Ints total = sums[0] + sums[1];
  __builtin_memcpy(lane, &total, sizeof(lane));
  return lane[0];
}

}  // namespace
}  // namespace calla::cpu
