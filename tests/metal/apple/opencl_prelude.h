// Metal's words for clang's OpenCL C++ mode, which is the nearest thing to Apple's compiler that runs
// anywhere: it knows address spaces. Functions are declared only; nothing is ever run. With the generic
// address space switched off a pointer to device memory given where a threadgroup or thread pointer is asked
// for is an error, as it is in Metal.
#pragma once

#pragma OPENCL EXTENSION cl_khr_fp16 : enable

#define device __global
#define threadgroup __local
#define thread __private
#define constant __constant
// OpenCL's kernels are no templates and take no references: here a kernel is a function like any other.
#define kernel

#define TG_ARRAY(type, name, count) \
  __local type* const name = metal::threadgroup_array<type, (sizeof(type) * (count)) <= 32768>()
// A template is checked when it is instantiated.
#define INSTANTIATE(name, ...) template decltype(__VA_ARGS__) __VA_ARGS__;

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
using size_t = unsigned long;
using ptrdiff_t = long;

// OpenCL has no vectors of bool: they are int vectors here, as comparisons give.
#define CALLA_VECTORS(T, NAME)                           \
  using NAME##2 = T __attribute__((ext_vector_type(2))); \
  using NAME##3 = T __attribute__((ext_vector_type(3))); \
  using NAME##4 = T __attribute__((ext_vector_type(4)));
CALLA_VECTORS(char, char)
CALLA_VECTORS(uchar, uchar)
CALLA_VECTORS(short, short)
CALLA_VECTORS(ushort, ushort)
CALLA_VECTORS(int, int)
CALLA_VECTORS(uint, uint)
CALLA_VECTORS(long, long)
CALLA_VECTORS(ulong, ulong)
CALLA_VECTORS(half, half)
CALLA_VECTORS(float, float)
CALLA_VECTORS(int, bool)
#undef CALLA_VECTORS

// Held in memory only: OpenCL has no arithmetic on it, nor do the kernels.
struct bfloat {
  bfloat() = default;
  explicit bfloat(float value);
  explicit operator float() const;

 private:
  ushort bits_;
};
struct alignas(8) bfloat4 {
  bfloat4() = default;
  explicit bfloat4(float4 values);
  explicit operator float4() const;

 private:
  ushort bits_[4];
};

template <class To, class From>
To as_type(From from) {
  return __builtin_astype(from, To);
}

namespace metal {

// F(T) for a scalar and its vectors.
#define CALLA_FOR_EACH(F, T, ...) \
  F(T, __VA_ARGS__) F(T##2, __VA_ARGS__) F(T##3, __VA_ARGS__) F(T##4, __VA_ARGS__)
#define CALLA_UNARY(T, name) T name(T x);
#define CALLA_BINARY(T, name) T name(T x, T y);
#define CALLA_TERNARY(T, name) T name(T x, T y, T z);

#define CALLA_TRANSCENDENTAL                \
  CALLA_FOR_EACH(CALLA_UNARY, float, cos)   \
  CALLA_FOR_EACH(CALLA_UNARY, float, exp)   \
  CALLA_FOR_EACH(CALLA_UNARY, float, exp2)  \
  CALLA_FOR_EACH(CALLA_UNARY, float, log)   \
  CALLA_FOR_EACH(CALLA_UNARY, float, log2)  \
  CALLA_FOR_EACH(CALLA_UNARY, float, rsqrt) \
  CALLA_FOR_EACH(CALLA_UNARY, float, sin)   \
  CALLA_FOR_EACH(CALLA_UNARY, float, sqrt)  \
  CALLA_FOR_EACH(CALLA_UNARY, float, tanh)  \
  CALLA_FOR_EACH(CALLA_BINARY, float, pow)  \
  CALLA_FOR_EACH(CALLA_BINARY, float, divide)
CALLA_TRANSCENDENTAL
namespace precise {
CALLA_TRANSCENDENTAL
}
namespace fast {
CALLA_TRANSCENDENTAL
}
CALLA_FOR_EACH(CALLA_UNARY, float, ceil)
CALLA_FOR_EACH(CALLA_UNARY, float, fabs)
CALLA_FOR_EACH(CALLA_UNARY, float, floor)
CALLA_FOR_EACH(CALLA_UNARY, float, fract)
CALLA_FOR_EACH(CALLA_UNARY, float, rint)
CALLA_FOR_EACH(CALLA_UNARY, float, round)
CALLA_FOR_EACH(CALLA_UNARY, float, saturate)
CALLA_FOR_EACH(CALLA_UNARY, float, trunc)
CALLA_FOR_EACH(CALLA_BINARY, float, copysign)
CALLA_FOR_EACH(CALLA_BINARY, float, fmax)
CALLA_FOR_EACH(CALLA_BINARY, float, fmin)
CALLA_FOR_EACH(CALLA_BINARY, float, step)
CALLA_FOR_EACH(CALLA_TERNARY, float, fma)
float ldexp(float x, int exponent);
float dot(float2 x, float2 y);
float dot(float3 x, float3 y);
float dot(float4 x, float4 y);

#define CALLA_COMPARING(T, unused) \
  T max(T x, T y);                 \
  T min(T x, T y);                 \
  T clamp(T x, T low, T high);
CALLA_FOR_EACH(CALLA_COMPARING, float, )
CALLA_FOR_EACH(CALLA_COMPARING, int, )
CALLA_FOR_EACH(CALLA_COMPARING, uint, )
CALLA_FOR_EACH(CALLA_COMPARING, ushort, )
CALLA_FOR_EACH(CALLA_COMPARING, long, )
CALLA_FOR_EACH(CALLA_COMPARING, ulong, )
CALLA_FOR_EACH(CALLA_UNARY, float, abs)
CALLA_FOR_EACH(CALLA_UNARY, int, abs)
#define CALLA_BITS(T, unused) \
  T popcount(T x);            \
  T clz(T x);                 \
  T ctz(T x);                 \
  T reverse_bits(T x);
CALLA_FOR_EACH(CALLA_BITS, int, )
CALLA_FOR_EACH(CALLA_BITS, uint, )
CALLA_FOR_EACH(CALLA_BINARY, uint, mulhi)
CALLA_FOR_EACH(CALLA_BINARY, int, mulhi)
ulong popcount(ulong x);
// select(a, b, c) is c ? b : a.
#define CALLA_SELECT(T)                 \
  T select(T a, T b, bool c);           \
  T##2 select(T##2 a, T##2 b, bool2 c); \
  T##3 select(T##3 a, T##3 b, bool3 c); \
  T##4 select(T##4 a, T##4 b, bool4 c);
CALLA_SELECT(float)
CALLA_SELECT(int)
CALLA_SELECT(uint)
bool all(bool2 x);
bool all(bool3 x);
bool all(bool4 x);
bool any(bool2 x);
bool any(bool3 x);
bool any(bool4 x);

template <class T, bool FITS>
__local T* threadgroup_array() {
  static_assert(FITS, "a threadgroup has 32 KiB of memory");
  return nullptr;
}

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
mem_flags operator|(mem_flags a, mem_flags b);
void threadgroup_barrier(mem_flags flags);
void simdgroup_barrier(mem_flags flags);

// The types that SIMD functions take: scalars of 16 and 32 bits and vectors of them.
template <class T>
struct is_simd_type {
  static constexpr bool value = false;
};
#define CALLA_SIMD_TYPE(T, unused)      \
  template <>                           \
  struct is_simd_type<T> {              \
    static constexpr bool value = true; \
  };
CALLA_FOR_EACH(CALLA_SIMD_TYPE, float, )
CALLA_FOR_EACH(CALLA_SIMD_TYPE, int, )
CALLA_FOR_EACH(CALLA_SIMD_TYPE, uint, )
CALLA_FOR_EACH(CALLA_SIMD_TYPE, short, )
CALLA_FOR_EACH(CALLA_SIMD_TYPE, ushort, )
CALLA_FOR_EACH(CALLA_SIMD_TYPE, half, )
#undef CALLA_SIMD_TYPE

template <bool, class T>
struct enabled {};
template <class T>
struct enabled<true, T> {
  using type = T;
};
template <class T>
using simd_type = typename enabled<is_simd_type<T>::value, T>::type;

#define CALLA_SIMD_FUNCTION(name, ...) \
  template <class T>                   \
  simd_type<T> name(T value __VA_OPT__(, ) __VA_ARGS__);
CALLA_SIMD_FUNCTION(simd_sum)
CALLA_SIMD_FUNCTION(simd_product)
CALLA_SIMD_FUNCTION(simd_max)
CALLA_SIMD_FUNCTION(simd_min)
CALLA_SIMD_FUNCTION(simd_and)
CALLA_SIMD_FUNCTION(simd_or)
CALLA_SIMD_FUNCTION(simd_xor)
CALLA_SIMD_FUNCTION(simd_prefix_inclusive_sum)
CALLA_SIMD_FUNCTION(simd_prefix_exclusive_sum)
CALLA_SIMD_FUNCTION(simd_prefix_inclusive_product)
CALLA_SIMD_FUNCTION(simd_prefix_exclusive_product)
CALLA_SIMD_FUNCTION(simd_broadcast_first)
CALLA_SIMD_FUNCTION(simd_broadcast, ushort lane)
CALLA_SIMD_FUNCTION(simd_shuffle, ushort lane)
CALLA_SIMD_FUNCTION(simd_shuffle_xor, ushort mask)
CALLA_SIMD_FUNCTION(simd_shuffle_up, ushort delta)
CALLA_SIMD_FUNCTION(simd_shuffle_down, ushort delta)
CALLA_SIMD_FUNCTION(simd_shuffle_rotate_up, ushort delta)
CALLA_SIMD_FUNCTION(simd_shuffle_rotate_down, ushort delta)
#undef CALLA_SIMD_FUNCTION
bool simd_all(bool condition);
bool simd_any(bool condition);
bool simd_is_first();
struct simd_vote {
  using vote_t = ulong;
  explicit operator vote_t() const;
};
simd_vote simd_ballot(bool condition);

template <class T, int COLUMNS, int ROWS>
class simdgroup_matrix {
  static_assert(COLUMNS == 8 && ROWS == 8, "SIMD-group matrices are 8 x 8");

 public:
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal);
  using elements = T __attribute__((ext_vector_type(2)));
  elements& thread_elements();
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;

template <class T, int COLUMNS, int ROWS>
simdgroup_matrix<T, COLUMNS, ROWS> make_filled_simdgroup_matrix(T value);
#define CALLA_MATRIX_MEMORY(space)                                                                    \
  template <class T>                                                                                  \
  void simdgroup_load(__private simdgroup_matrix<T, 8, 8>& matrix, space const T* from,               \
                      ulong elements_per_row = 8, ulong2 origin = ulong2(0), bool transpose = false); \
  template <class T>                                                                                  \
  void simdgroup_store(__private const simdgroup_matrix<T, 8, 8>& matrix, space T* to,                \
                       ulong elements_per_row = 8, ulong2 origin = ulong2(0), bool transpose = false);
CALLA_MATRIX_MEMORY(__global)
CALLA_MATRIX_MEMORY(__local)
#undef CALLA_MATRIX_MEMORY
template <class D, class A, class B>
void simdgroup_multiply(__private simdgroup_matrix<D, 8, 8>& d, __private const simdgroup_matrix<A, 8, 8>& a,
                        __private const simdgroup_matrix<B, 8, 8>& b);
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(__private simdgroup_matrix<D, 8, 8>& d,
                                   __private const simdgroup_matrix<A, 8, 8>& a,
                                   __private const simdgroup_matrix<B, 8, 8>& b,
                                   __private const simdgroup_matrix<C, 8, 8>& c);

// Atomics of 32 bits, which are relaxed.
enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  T value;
};
#define atomic_int metal_atomic_int  // OpenCL's own are other types
#define atomic_uint metal_atomic_uint
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
#define CALLA_ATOMIC(space)                                                                   \
  template <class T>                                                                          \
  T atomic_load_explicit(volatile space const atomic<T>* object, memory_order order);         \
  template <class T>                                                                          \
  void atomic_store_explicit(volatile space atomic<T>* object, T value, memory_order order);  \
  template <class T>                                                                          \
  T atomic_fetch_add_explicit(volatile space atomic<T>* object, T value, memory_order order); \
  template <class T>                                                                          \
  T atomic_fetch_max_explicit(volatile space atomic<T>* object, T value, memory_order order); \
  template <class T>                                                                          \
  T atomic_fetch_min_explicit(volatile space atomic<T>* object, T value, memory_order order); \
  template <class T>                                                                          \
  T atomic_fetch_or_explicit(volatile space atomic<T>* object, T value, memory_order order);  \
  template <class T>                                                                          \
  T atomic_fetch_and_explicit(volatile space atomic<T>* object, T value, memory_order order); \
  template <class T>                                                                          \
  T atomic_exchange_explicit(volatile space atomic<T>* object, T value, memory_order order);
CALLA_ATOMIC(__global)
CALLA_ATOMIC(__local)
#undef CALLA_ATOMIC

}  // namespace metal
