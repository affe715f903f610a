// Metal's vectors of 2, 3 and 4 elements, with its alignment and swizzles. Operators are the compiler's own
// vector operations.
#pragma once
#include "metal/simulator/shim/types.h"

namespace metal {
inline namespace CALLA_VARIANT {

template <class T, int N>
struct vec;

// Three elements take the room of four.
template <int N>
inline constexpr int places = N == 3 ? 4 : N;

/// What holds a vector for the compiler's vector operations; a plain array where it has none.
template <class T, int N, bool arithmetic = !is_storage_only<T> && !is_same_v<T, bool>>
struct native_vector {
  typedef T type __attribute__((vector_size(sizeof(T) * places<N>)));
};
template <class T, int N>
struct native_vector<T, N, false> {
  struct type {
    T values[places<N>];
  };
};

/// Elements I... of the vector that it shares its memory with. The vector is an argument of the template so
/// that its operators are found for swizzles too.
template <class V, class T, int N, int... I>
struct swizzle {
  T data[places<N>];

  swizzle() = default;
  swizzle(const swizzle&) = default;
  swizzle& operator=(const swizzle& other) { return *this = V(other); }
  swizzle& operator=(V values) {
    int from = 0;
    ((data[I] = values[from++]), ...);
    return *this;
  }
  operator V() const { return V(data[I]...); }
  swizzle& operator+=(V values) { return *this = V(*this) + values; }
  swizzle& operator*=(V values) { return *this = V(*this) * values; }
};

template <class T, int N>
struct elements;

#define CALLA_SWIZZLE_2(a, b, i, j) swizzle<vec<T, 2>, T, size, i, j> a##b
#define CALLA_SWIZZLE_3(a, b, c, i, j, k) swizzle<vec<T, 3>, T, size, i, j, k> a##b##c
#define CALLA_SWIZZLE_4(a, b, c, d, i, j, k, l) swizzle<vec<T, 4>, T, size, i, j, k, l> a##b##c##d
#define CALLA_ELEMENTS(n, ...)                              \
  template <class T>                                        \
  struct elements<T, n> {                                   \
    static constexpr int size = n;                          \
    using native_type = typename native_vector<T, n>::type; \
    union {                                                 \
      T data[places<n>];                                    \
      native_type native;                                   \
      __VA_ARGS__                                           \
    };                                                      \
    elements() = default;                                   \
    elements(const elements&) = default;                    \
    elements& operator=(const elements& other) {            \
      native = other.native;                                \
      return *this;                                         \
    }                                                       \
  }

CALLA_ELEMENTS(
    2,
    struct {
      T x;
      T y;
    };
    struct {
      T r;
      T g;
    };
    CALLA_SWIZZLE_2(x, x, 0, 0); CALLA_SWIZZLE_2(x, y, 0, 1); CALLA_SWIZZLE_2(y, x, 1, 0);
    CALLA_SWIZZLE_2(y, y, 1, 1););
CALLA_ELEMENTS(
    3,
    struct {
      T x;
      T y;
      T z;
    };
    struct {
      T r;
      T g;
      T b;
    };
    CALLA_SWIZZLE_2(x, y, 0, 1); CALLA_SWIZZLE_2(x, z, 0, 2); CALLA_SWIZZLE_2(y, z, 1, 2);
    CALLA_SWIZZLE_2(y, x, 1, 0); CALLA_SWIZZLE_3(x, y, z, 0, 1, 2); CALLA_SWIZZLE_3(z, y, x, 2, 1, 0););
CALLA_ELEMENTS(
    4,
    struct {
      T x;
      T y;
      T z;
      T w;
    };
    struct {
      T r;
      T g;
      T b;
      T a;
    };
    CALLA_SWIZZLE_2(x, x, 0, 0); CALLA_SWIZZLE_2(x, y, 0, 1); CALLA_SWIZZLE_2(x, z, 0, 2);
    CALLA_SWIZZLE_2(x, w, 0, 3); CALLA_SWIZZLE_2(y, x, 1, 0); CALLA_SWIZZLE_2(y, y, 1, 1);
    CALLA_SWIZZLE_2(y, z, 1, 2); CALLA_SWIZZLE_2(y, w, 1, 3); CALLA_SWIZZLE_2(z, x, 2, 0);
    CALLA_SWIZZLE_2(z, y, 2, 1); CALLA_SWIZZLE_2(z, z, 2, 2); CALLA_SWIZZLE_2(z, w, 2, 3);
    CALLA_SWIZZLE_2(w, x, 3, 0); CALLA_SWIZZLE_2(w, y, 3, 1); CALLA_SWIZZLE_2(w, z, 3, 2);
    CALLA_SWIZZLE_2(w, w, 3, 3); CALLA_SWIZZLE_3(x, y, z, 0, 1, 2); CALLA_SWIZZLE_3(y, z, w, 1, 2, 3);
    CALLA_SWIZZLE_4(x, y, z, w, 0, 1, 2, 3); CALLA_SWIZZLE_4(w, z, y, x, 3, 2, 1, 0);
    CALLA_SWIZZLE_4(y, z, w, x, 1, 2, 3, 0); CALLA_SWIZZLE_4(z, w, x, y, 2, 3, 0, 1);
    CALLA_SWIZZLE_4(y, x, w, z, 1, 0, 3, 2); CALLA_SWIZZLE_4(x, x, x, x, 0, 0, 0, 0);
    CALLA_SWIZZLE_4(y, y, y, y, 1, 1, 1, 1); CALLA_SWIZZLE_4(z, z, z, z, 2, 2, 2, 2);
    CALLA_SWIZZLE_4(w, w, w, w, 3, 3, 3, 3););
#undef CALLA_SWIZZLE_2
#undef CALLA_SWIZZLE_3
#undef CALLA_SWIZZLE_4
#undef CALLA_ELEMENTS

#define CALLA_OPERATOR(op, condition)                                                   \
  friend vec operator op(vec a, vec b) requires(condition) {                            \
    vec result;                                                                         \
    result.native = a.native op b.native;                                               \
    return result;                                                                      \
  }                                                                                     \
  friend vec operator op(vec a, T b) requires(condition) { return a op vec(b); }        \
  friend vec operator op(T a, vec b) requires(condition) { return vec(a) op b; }        \
  vec& operator op##=(vec other) requires(condition) { return *this = *this op other; } \
  vec& operator op##=(T other) requires(condition) { return *this = *this op vec(other); }
#define CALLA_COMPARISON(op)                                                               \
  friend vec<bool, N> operator op(vec a, vec b) requires(arithmetic) {                     \
    vec<bool, N> result;                                                                   \
    for (int i = 0; i < N; ++i) result.data[i] = a.data[i] op b.data[i];                   \
    return result;                                                                         \
  }                                                                                        \
  friend vec<bool, N> operator op(vec a, T b) requires(arithmetic) { return a op vec(b); } \
  friend vec<bool, N> operator op(T a, vec b) requires(arithmetic) { return vec(a) op b; }

template <class T, int N>
struct alignas(sizeof(T) * places<N>) vec : elements<T, N> {
  static constexpr bool is_bool = is_same_v<T, bool>;
  static constexpr bool arithmetic = !is_storage_only<T> && !is_bool;
  static constexpr bool integral = arithmetic && !is_floating<T>;

  vec() = default;
  vec(const vec&) = default;
  vec& operator=(const vec&) = default;
  explicit vec(T value) {
    for (int i = 0; i < N; ++i) this->data[i] = value;
  }
  vec(T a, T b) requires(N == 2) { set(a, b); }
  vec(T a, T b, T c) requires(N == 3) { set(a, b, c); }
  vec(vec<T, 2> a, T b) requires(N == 3) { set(a.x, a.y, b); }
  vec(T a, vec<T, 2> b) requires(N == 3) { set(a, b.x, b.y); }
  vec(T a, T b, T c, T d) requires(N == 4) { set(a, b, c, d); }
  vec(vec<T, 2> a, vec<T, 2> b) requires(N == 4) { set(a.x, a.y, b.x, b.y); }
  vec(vec<T, 2> a, T b, T c) requires(N == 4) { set(a.x, a.y, b, c); }
  vec(T a, T b, vec<T, 2> c) requires(N == 4) { set(a, b, c.x, c.y); }
  vec(vec<T, 3> a, T b) requires(N == 4) { set(a.x, a.y, a.z, b); }
  vec(T a, vec<T, 3> b) requires(N == 4) { set(a, b.x, b.y, b.z); }
  template <class U>
  explicit vec(vec<U, N> other) requires(!is_same_v<T, U>) {
    for (int i = 0; i < N; ++i) this->data[i] = static_cast<T>(other.data[i]);
  }
  template <class U, int M, int... I>
  explicit vec(const swizzle<vec<U, N>, U, M, I...>& other) requires(!is_same_v<T, U>)
      : vec(vec<U, N>(other)) {}

  T& operator[](uint i) { return this->data[i]; }
  const T& operator[](uint i) const { return this->data[i]; }

  CALLA_OPERATOR(+, arithmetic)
  CALLA_OPERATOR(-, arithmetic)
  CALLA_OPERATOR(*, arithmetic)
  CALLA_OPERATOR(/, arithmetic)
  CALLA_OPERATOR(%, integral)
  CALLA_OPERATOR(&, integral)
  CALLA_OPERATOR(|, integral)
  CALLA_OPERATOR(^, integral)
  CALLA_OPERATOR(<<, integral)
  CALLA_OPERATOR(>>, integral)
  CALLA_COMPARISON(==)
  CALLA_COMPARISON(!=)
  CALLA_COMPARISON(<)
  CALLA_COMPARISON(<=)
  CALLA_COMPARISON(>)
  CALLA_COMPARISON(>=)
  friend vec operator-(vec a) requires(arithmetic) { return vec(T(0)) - a; }
  friend vec operator~(vec a) requires(integral) { return a ^ vec(static_cast<T>(~T(0))); }
  friend vec operator!(vec a) requires(is_bool) {
    for (int i = 0; i < N; ++i) a.data[i] = !a.data[i];
    return a;
  }
  friend vec operator&&(vec a, vec b) requires(is_bool) {
    for (int i = 0; i < N; ++i) a.data[i] = a.data[i] && b.data[i];
    return a;
  }
  friend vec operator||(vec a, vec b) requires(is_bool) {
    for (int i = 0; i < N; ++i) a.data[i] = a.data[i] || b.data[i];
    return a;
  }

 private:
  template <class... U>
  void set(U... values) {
    int i = 0;
    ((this->data[i++] = values), ...);
  }
};
#undef CALLA_OPERATOR
#undef CALLA_COMPARISON

/// The same without its alignment: for loads and stores at any element.
template <class T, int N>
struct packed_vec {
  T data[N];

  packed_vec() = default;
  packed_vec(vec<T, N> values) {
    for (int i = 0; i < N; ++i) data[i] = values.data[i];
  }
  operator vec<T, N>() const {
    vec<T, N> result;
    for (int i = 0; i < N; ++i) result.data[i] = data[i];
    return result;
  }
  T& operator[](uint i) { return data[i]; }
  const T& operator[](uint i) const { return data[i]; }
};

}  // namespace CALLA_VARIANT
}  // namespace metal

using metal::vec;
#define CALLA_VECTORS(type)                            \
  using type##2 = metal::vec<type, 2>;                 \
  using type##3 = metal::vec<type, 3>;                 \
  using type##4 = metal::vec<type, 4>;                 \
  using packed_##type##2 = metal::packed_vec<type, 2>; \
  using packed_##type##3 = metal::packed_vec<type, 3>; \
  using packed_##type##4 = metal::packed_vec<type, 4>
CALLA_VECTORS(bool);
CALLA_VECTORS(char);
CALLA_VECTORS(uchar);
CALLA_VECTORS(short);
CALLA_VECTORS(ushort);
CALLA_VECTORS(int);
CALLA_VECTORS(uint);
CALLA_VECTORS(long);
CALLA_VECTORS(ulong);
CALLA_VECTORS(half);
CALLA_VECTORS(bfloat);
CALLA_VECTORS(float);
#undef CALLA_VECTORS
