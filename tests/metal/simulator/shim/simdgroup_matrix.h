// 8 x 8 matrices held by a SIMD-group, two elements a lane, in the layout that Apple's GPUs have.
#pragma once
#include "metal/simulator/shim/simdgroup.h"

namespace metal {
inline namespace CALLA_VARIANT {

inline constexpr bool is_watched =
    calla::metal::simulation::Build::CALLA_BUILD == calla::metal::simulation::Build::checked;

/// The first of a lane's two elements, which are neighbours in a row.
inline uint matrix_row(uint lane) { return (lane / 4 & 4U) + lane / 2 % 4; }
inline uint matrix_column(uint lane) { return (lane / 4 & 2U) * 2 + lane % 2 * 2; }

template <class T, int columns, int rows>
struct simdgroup_matrix {
  static_assert(columns == 8 && rows == 8, "SIMD-group matrices are 8 x 8");

  simdgroup_matrix() = default;
  /// The value on the diagonal, zero elsewhere.
  explicit simdgroup_matrix(T diagonal) {
    const uint row = matrix_row(this_lane());
    const uint column = matrix_column(this_lane());
    elements[0] = row == column ? diagonal : T(0);
    elements[1] = row == column + 1 ? diagonal : T(0);
  }
  vec<T, 2>& thread_elements() { return elements; }
  const vec<T, 2>& thread_elements() const { return elements; }

  vec<T, 2> elements;
};

template <class T, int columns, int rows = columns>
simdgroup_matrix<T, columns, rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, columns, rows> matrix;
  matrix.thread_elements() = vec<T, 2>(value);
  return matrix;
}

/// Element (row, column) lies at origin + row * elements_per_row + column, or the other way round when
/// transposed. The origin is (column, row).
template <class T>
void simdgroup_load(simdgroup_matrix<T, 8, 8>& matrix, const T* from, ulong elements_per_row = 8,
                    ulong2 origin = ulong2(0UL), bool transpose = false, CALLA_SITE) {
  if (is_watched) meet_lanes(file, line);
  const ulong row = matrix_row(this_lane());
  const ulong column = matrix_column(this_lane());
  from += origin.y * elements_per_row + origin.x;
  vec<T, 2>& elements = matrix.thread_elements();
  elements[0] = from[transpose ? column * elements_per_row + row : row * elements_per_row + column];
  elements[1] = from[transpose ? (column + 1) * elements_per_row + row : row * elements_per_row + column + 1];
}
template <class T>
void simdgroup_store(const simdgroup_matrix<T, 8, 8>& matrix, T* to, ulong elements_per_row = 8,
                     ulong2 origin = ulong2(0UL), bool transpose = false, CALLA_SITE) {
  if (is_watched) meet_lanes(file, line);
  const ulong row = matrix_row(this_lane());
  const ulong column = matrix_column(this_lane());
  to += origin.y * elements_per_row + origin.x;
  const vec<T, 2>& elements = matrix.thread_elements();
  to[transpose ? column * elements_per_row + row : row * elements_per_row + column] = elements[0];
  to[transpose ? (column + 1) * elements_per_row + row : row * elements_per_row + column + 1] = elements[1];
}

/// d = a b + c, the products added one after another in float32. The last lane to come does it for all.
template <class D, class A, class B, class C>
CALLA_UNWATCHED void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                                   const simdgroup_matrix<A, 8, 8>& a,
                                                   const simdgroup_matrix<B, 8, 8>& b,
                                                   const simdgroup_matrix<C, 8, 8>& c, CALLA_SITE) {
  using namespace calla::metal::simulation;
  struct Operands {
    float a[8][8];
    float4 b[8][2];
    float4 c[8][2];
  };
  Thread& thread = *current;
  Operands& operands = *reinterpret_cast<Operands*>(thread.group->exchange[thread.meetings++ & 1]);
  static_assert(sizeof(operands) == sizeof(thread.group->exchange[0]));
  const uint row = matrix_row(thread.lane);
  const uint column = matrix_column(thread.lane);
  float* const own_a = &operands.a[row][column];
  float* const own_b = &operands.b[row][column / 4].data[column % 4];
  float* const own_c = &operands.c[row][column / 4].data[column % 4];
  for (uint i = 0; i < 2; ++i) {
    own_a[i] = static_cast<float>(a.elements.data[i]);
    own_b[i] = static_cast<float>(b.elements.data[i]);
    own_c[i] = static_cast<float>(c.elements.data[i]);
  }
  if (meet(thread, Meeting::simd_function, 0, {file, line})) {
    for (uint i = 0; i < 8; ++i) {
      auto left = operands.c[i][0].native;
      auto right = operands.c[i][1].native;
      for (uint k = 0; k < 8; ++k) {
        left += operands.a[i][k] * operands.b[k][0].native;
        right += operands.a[i][k] * operands.b[k][1].native;
      }
      operands.c[i][0].native = left;
      operands.c[i][1].native = right;
    }
  }
  for (uint i = 0; i < 2; ++i) d.elements.data[i] = D(own_c[i]);
}
template <class D, class A, class B>
CALLA_UNWATCHED void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                        const simdgroup_matrix<B, 8, 8>& b, CALLA_SITE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)), file, line);
}

using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

}  // namespace CALLA_VARIANT
}  // namespace metal
