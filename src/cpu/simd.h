// Sixteen lanes of float32 or int32, in the registers that the compiler's flags allow: one of AVX-512, two of
// AVX2, four of SSE2 or NEON. Included by kernel sources alone, inside their unnamed namespace.
//
// Every level computes the same thing in the same order; AVX2 and AVX-512 agree bit for bit. Without a fused
// multiply-add instruction fma() rounds twice.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <cstddef>
#include <cstdint>

#define CALLA_INLINE [[gnu::always_inline]] inline

namespace calla::cpu {
namespace {

constexpr int lanes = 16;
constexpr int group_columns = 64;  // of weights and activations that share a scale

#if defined(__AVX512F__)

struct Floats {
  __m512 v;
};
struct Ints {
  __m512i v;
};

CALLA_INLINE Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
CALLA_INLINE void store(float* p, Floats x) { _mm512_storeu_ps(p, x.v); }
CALLA_INLINE Floats splat(float x) { return {_mm512_set1_ps(x)}; }
CALLA_INLINE Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
CALLA_INLINE Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
CALLA_INLINE Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
CALLA_INLINE Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
CALLA_INLINE Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
CALLA_INLINE Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
CALLA_INLINE Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
CALLA_INLINE Ints load_ints(const void* p) { return {_mm512_loadu_si512(p)}; }
CALLA_INLINE Ints splat_int(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
CALLA_INLINE Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
CALLA_INLINE Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
CALLA_INLINE Ints operator&(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
CALLA_INLINE Ints max(Ints a, Ints b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int n>
CALLA_INLINE Ints shift_left(Ints a) {
  return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
CALLA_INLINE Ints shift_right(Ints a) {  // arithmetic
  return {_mm512_srai_epi32(a.v, n)};
}
CALLA_INLINE Floats to_floats(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
CALLA_INLINE Ints to_ints(Floats a) { return {_mm512_cvtps_epi32(a.v)}; }  // to nearest, even
CALLA_INLINE Floats as_floats(Ints a) { return {_mm512_castsi512_ps(a.v)}; }
CALLA_INLINE Ints as_ints(Floats a) { return {_mm512_castps_si512(a.v)}; }
/// The lanes as int8; they must be in its range.
CALLA_INLINE void store_bytes(std::int8_t* p, Ints a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
CALLA_INLINE __m256 low_half(Floats a) { return _mm512_castps512_ps256(a.v); }
CALLA_INLINE __m256 high_half(Floats a) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
}

#elif defined(__AVX2__)

struct Floats {
  __m256 a, b;
};
struct Ints {
  __m256i a, b;
};

CALLA_INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
CALLA_INLINE void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
CALLA_INLINE Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
CALLA_INLINE Floats operator+(Floats x, Floats y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
CALLA_INLINE Floats operator-(Floats x, Floats y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
CALLA_INLINE Floats operator*(Floats x, Floats y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
CALLA_INLINE Floats operator/(Floats x, Floats y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
CALLA_INLINE Floats fma(Floats x, Floats y, Floats z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
CALLA_INLINE Floats max(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
CALLA_INLINE Floats min(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
CALLA_INLINE Ints load_ints(const void* p) {
  const auto* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
CALLA_INLINE Ints splat_int(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
CALLA_INLINE Ints operator+(Ints x, Ints y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
CALLA_INLINE Ints operator-(Ints x, Ints y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
CALLA_INLINE Ints operator&(Ints x, Ints y) {
  return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
CALLA_INLINE Ints max(Ints x, Ints y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
template <int n>
CALLA_INLINE Ints shift_left(Ints x) {
  return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
}
template <int n>
CALLA_INLINE Ints shift_right(Ints x) {  // arithmetic
  return {_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)};
}
CALLA_INLINE Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
CALLA_INLINE Ints to_ints(Floats x) {  // to nearest, even
  return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)};
}
CALLA_INLINE Floats as_floats(Ints x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
CALLA_INLINE Ints as_ints(Floats x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
/// The lanes as int8; they must be in its range.
CALLA_INLINE void store_bytes(std::int8_t* p, Ints x) {
  const __m256i words = _mm256_packs_epi32(x.a, x.b);  // a0-3 b0-3 | a4-7 b4-7
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0b11'01'10'00);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}
CALLA_INLINE __m256 low_half(Floats x) { return x.a; }
CALLA_INLINE __m256 high_half(Floats x) { return x.b; }

#else

// The compiler's own vectors of four: SSE2 and NEON have them, and elsewhere it makes do.
using Floats4 = float __attribute__((vector_size(16)));
using Ints4 = std::int32_t __attribute__((vector_size(16)));
struct Floats {
  Floats4 v[4];
};
struct Ints {
  Ints4 v[4];
};

template <class Result, class Work>
CALLA_INLINE Result each(Work work) {
  Result r;
  for (int i = 0; i < 4; ++i) r.v[i] = work(i);
  return r;
}

CALLA_INLINE Floats load(const float* p) {
  Floats r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}
CALLA_INLINE void store(float* p, Floats x) { __builtin_memcpy(p, &x, sizeof(x)); }
CALLA_INLINE Floats splat(float x) {
  return each<Floats>([&](int) { return Floats4{x, x, x, x}; });
}
CALLA_INLINE Floats operator+(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] + b.v[i]; });
}
CALLA_INLINE Floats operator-(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] - b.v[i]; });
}
CALLA_INLINE Floats operator*(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] * b.v[i]; });
}
CALLA_INLINE Floats operator/(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] / b.v[i]; });
}
CALLA_INLINE Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }
CALLA_INLINE Floats max(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
CALLA_INLINE Floats min(Floats a, Floats b) {
  return each<Floats>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
CALLA_INLINE Ints load_ints(const void* p) {
  Ints r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}
CALLA_INLINE Ints splat_int(std::int32_t x) {
  return each<Ints>([&](int) { return Ints4{x, x, x, x}; });
}
CALLA_INLINE Ints operator+(Ints a, Ints b) {
  return each<Ints>([&](int i) { return a.v[i] + b.v[i]; });
}
CALLA_INLINE Ints operator-(Ints a, Ints b) {
  return each<Ints>([&](int i) { return a.v[i] - b.v[i]; });
}
CALLA_INLINE Ints operator&(Ints a, Ints b) {
  return each<Ints>([&](int i) { return a.v[i] & b.v[i]; });
}
CALLA_INLINE Ints max(Ints a, Ints b) {
  return each<Ints>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int n>
CALLA_INLINE Ints shift_left(Ints a) {
  return each<Ints>([&](int i) { return a.v[i] << n; });
}
template <int n>
CALLA_INLINE Ints shift_right(Ints a) {  // arithmetic
  return each<Ints>([&](int i) { return a.v[i] >> n; });
}
CALLA_INLINE Floats to_floats(Ints a) {
  return each<Floats>([&](int i) { return __builtin_convertvector(a.v[i], Floats4); });
}
CALLA_INLINE Floats as_floats(Ints a) {
  Floats r;
  __builtin_memcpy(&r, &a, sizeof(r));
  return r;
}
CALLA_INLINE Ints as_ints(Floats a) {
  Ints r;
  __builtin_memcpy(&r, &a, sizeof(r));
  return r;
}
/// To nearest, even, for |a| < 2^22: adding 1.5 * 2^23 leaves the integer in the low bits of the sum.
CALLA_INLINE Ints to_ints(Floats a) {
  const Floats magic = splat(12582912.0F);
  return as_ints(a + magic) - as_ints(magic);
}
/// The lanes as int8; they must be in its range.
CALLA_INLINE void store_bytes(std::int8_t* p, Ints a) {
  for (int i = 0; i < lanes; ++i) p[i] = static_cast<std::int8_t>(a.v[i / 4][i % 4]);
}

#endif

CALLA_INLINE Floats zeros() { return splat(0.0F); }

#if defined(__AVX2__)
/// The sum of the lanes, halving: lane i + lane i + 8, and so on.
CALLA_INLINE float sum(Floats x) {
  const __m256 eight = _mm256_add_ps(low_half(x), high_half(x));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
#else
CALLA_INLINE float sum(Floats x) {
  const Floats4 four = (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
#endif

CALLA_INLINE Floats absolute(Floats x) { return as_floats(as_ints(x) & splat_int(0x7fffffff)); }

/// Two bfloat16 a dword: those of the low halves, those of the high halves.
CALLA_INLINE Floats low_bf16(Ints x) { return as_floats(shift_left<16>(x)); }
CALLA_INLINE Floats high_bf16(Ints x) {
  return as_floats(x & splat_int(static_cast<std::int32_t>(0xffff0000U)));
}

/// exp(x), relative error below 2e-7; below -87.3 the smallest normal number, above 88.3 about 2e38.
///   exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; ln 2 in two parts so that n ln 2 is exact.
/// Polynomial and constants: Cephes, expf.
CALLA_INLINE Floats exp(Floats x) {
  x = min(max(x, splat(-87.3F)), splat(88.3F));
  const Ints n = to_ints(x * splat(1.44269504F));
  const Floats whole = to_floats(n);
  Floats r = x - whole * splat(0.693359375F);
  r = r - whole * splat(-2.12194440e-4F);
  Floats p = splat(1.9875691500e-4F);
  p = fma(p, r, splat(1.3981999507e-3F));
  p = fma(p, r, splat(8.3334519073e-3F));
  p = fma(p, r, splat(4.1665795894e-2F));
  p = fma(p, r, splat(1.6666665459e-1F));
  p = fma(p, r, splat(5.0000001201e-1F));
  p = fma(p, r * r, r) + splat(1.0F);
  return as_floats(as_ints(p) + shift_left<23>(n));
}

CALLA_INLINE Floats sigmoid(Floats x) { return splat(1.0F) / (splat(1.0F) + exp(zeros() - x)); }
CALLA_INLINE Floats silu(Floats x) { return x * sigmoid(x); }

}  // namespace
}  // namespace calla::cpu
