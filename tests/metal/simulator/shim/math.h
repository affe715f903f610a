// Metal's arithmetic functions, on scalars and elementwise on vectors. fma(a, b, c) is a * b + c in two
// roundings: the machines that run the tests need not have the instruction.
#pragma once
#include "metal/simulator/shim/vector.h"
#ifdef CALLA_LOOSE
#include "metal/simulator/shim/loose.h"
#endif

namespace metal {
inline namespace CALLA_VARIANT {

// name(x) for a float, and for each element of a vector of them.
#define CALLA_UNARY(name, expression)                        \
  inline float name(float x) { return expression; }          \
  template <int N>                                           \
  vec<float, N> name(vec<float, N> x) {                      \
    for (int i = 0; i < N; ++i) x.data[i] = name(x.data[i]); \
    return x;                                                \
  }
#define CALLA_BINARY(name, expression)                                  \
  inline float name(float x, float y) { return expression; }            \
  template <int N>                                                      \
  vec<float, N> name(vec<float, N> x, vec<float, N> y) {                \
    for (int i = 0; i < N; ++i) x.data[i] = name(x.data[i], y.data[i]); \
    return x;                                                           \
  }
#ifndef CALLA_LOOSE
#define CALLA_PRECISE                           \
  CALLA_UNARY(exp, __builtin_expf(x))           \
  CALLA_UNARY(exp2, __builtin_exp2f(x))         \
  CALLA_UNARY(log, __builtin_logf(x))           \
  CALLA_UNARY(log2, __builtin_log2f(x))         \
  CALLA_UNARY(sin, __builtin_sinf(x))           \
  CALLA_UNARY(cos, __builtin_cosf(x))           \
  CALLA_UNARY(tanh, __builtin_tanhf(x))         \
  CALLA_UNARY(sqrt, __builtin_sqrtf(x))         \
  CALLA_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x)) \
  CALLA_BINARY(pow, __builtin_powf(x, y))       \
  CALLA_BINARY(divide, x / y)
#define CALLA_FAST CALLA_PRECISE
#endif

CALLA_PRECISE
namespace precise {
CALLA_PRECISE
}
namespace fast {
CALLA_FAST
}
CALLA_UNARY(fabs, __builtin_fabsf(x))
CALLA_UNARY(floor, __builtin_floorf(x))
CALLA_UNARY(ceil, __builtin_ceilf(x))
CALLA_UNARY(trunc, __builtin_truncf(x))
CALLA_UNARY(round, __builtin_roundf(x))
CALLA_UNARY(rint, __builtin_rintf(x))
CALLA_UNARY(fract, x - __builtin_floorf(x))
CALLA_UNARY(saturate, x<0.0f ? 0.0f : x> 1.0f ? 1.0f : x)
CALLA_BINARY(fmin, x < y ? x : y)
CALLA_BINARY(fmax, x > y ? x : y)
CALLA_BINARY(copysign, __builtin_copysignf(x, y))
CALLA_BINARY(step, y < x ? 0.0f : 1.0f)
#undef CALLA_PRECISE
#undef CALLA_FAST
#undef CALLA_UNARY
#undef CALLA_BINARY

inline float fma(float a, float b, float c) { return a * b + c; }
template <int N>
vec<float, N> fma(vec<float, N> a, vec<float, N> b, vec<float, N> c) {
  return a * b + c;
}
inline float mix(float a, float b, float t) { return a + (b - a) * t; }
inline float ldexp(float x, int exponent) { return __builtin_ldexpf(x, exponent); }

template <class T>
concept number = !is_storage_only<T> && !is_same_v<T, bool> && requires(T t) {
  t < t;
  static_cast<float>(t);
};

template <number T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <number T>
T max(T a, T b) {
  return a < b ? b : a;
}
template <number T>
T clamp(T x, T low, T high) {
  return min(max(x, low), high);
}
template <number T>
T abs(T x) {
  return x < T(0) ? static_cast<T>(-x) : x;
}
template <class T, int N>
vec<T, N> min(vec<T, N> a, vec<T, N> b) {
  for (int i = 0; i < N; ++i) a.data[i] = min(a.data[i], b.data[i]);
  return a;
}
template <class T, int N>
vec<T, N> max(vec<T, N> a, vec<T, N> b) {
  for (int i = 0; i < N; ++i) a.data[i] = max(a.data[i], b.data[i]);
  return a;
}
template <class T, int N>
vec<T, N> clamp(vec<T, N> x, vec<T, N> low, vec<T, N> high) {
  return min(max(x, low), high);
}
template <class T, int N>
vec<T, N> abs(vec<T, N> x) {
  for (int i = 0; i < N; ++i) x.data[i] = abs(x.data[i]);
  return x;
}

template <class T, int N>
T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a.data[0] * b.data[0];
  for (int i = 1; i < N; ++i) sum += a.data[i] * b.data[i];
  return sum;
}
template <int N>
float length_squared(vec<float, N> a) {
  return dot(a, a);
}
template <int N>
float length(vec<float, N> a) {
  return sqrt(dot(a, a));
}

/// b where the condition holds, else a.
template <class T>
T select(T a, T b, bool condition) {
  return condition ? b : a;
}
template <class T, int N>
vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> condition) {
  for (int i = 0; i < N; ++i) a.data[i] = condition.data[i] ? b.data[i] : a.data[i];
  return a;
}
template <int N>
bool any(vec<bool, N> x) {
  bool result = false;
  for (int i = 0; i < N; ++i) result = result || x.data[i];
  return result;
}
template <int N>
bool all(vec<bool, N> x) {
  bool result = true;
  for (int i = 0; i < N; ++i) result = result && x.data[i];
  return result;
}

inline uint popcount(uint x) { return static_cast<uint>(__builtin_popcount(x)); }
inline ulong popcount(ulong x) { return static_cast<ulong>(__builtin_popcountl(x)); }
inline uint clz(uint x) { return x == 0 ? 32U : static_cast<uint>(__builtin_clz(x)); }
inline uint ctz(uint x) { return x == 0 ? 32U : static_cast<uint>(__builtin_ctz(x)); }
inline uint mulhi(uint a, uint b) { return static_cast<uint>(static_cast<ulong>(a) * b >> 32); }
inline int mulhi(int a, int b) { return static_cast<int>(static_cast<long>(a) * b >> 32); }
inline uint rotate(uint x, uint bits) { return x << (bits & 31U) | x >> (-bits & 31U); }
inline uint reverse_bits(uint x) {
  uint result = 0;
  for (uint i = 0; i < 32; ++i) result |= (x >> i & 1U) << (31 - i);
  return result;
}
inline uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0U : x >> offset & 0xffffffffU >> (32 - bits);
}

}  // namespace CALLA_VARIANT
}  // namespace metal
