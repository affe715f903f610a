// Metal's tensors of two dimensions over memory that is there, as far as the kernels use them.
#pragma once
#include "metal/simulator/shim/simdgroup.h"

namespace metal {
inline namespace CALLA_VARIANT {

inline constexpr size_t dynamic_extent = static_cast<size_t>(-1);

/// Columns, then rows.
template <class Index, size_t rank>
class dextents {
  static_assert(rank == 2, "tensors have two dimensions here");

 public:
  constexpr dextents(Index columns, Index rows) : values_{columns, rows} {}
  constexpr Index extent(size_t dimension) const { return values_[dimension]; }

 private:
  Index values_[rank];
};

struct tensor_inline {};

template <class T, class Extents, class Descriptor>
class tensor {
 public:
  using element_type = T;

  tensor(T* data, const Extents& extents) : data_(data), extents_(extents) {}

  const Extents& extents() const { return extents_; }
  /// An element that is there.
  T& at(int column, int row) const { return data_[row * extents_.extent(0) + column]; }
  bool has(int column, int row) const { return column < extents_.extent(0) && row < extents_.extent(1); }

 private:
  T* data_;
  Extents extents_;
};

/// The threads that do an operation together: so many SIMD-groups, which are all of the threadgroup's.
template <int count>
struct execution_simdgroups {
  static constexpr int simdgroups = count;
};

}  // namespace CALLA_VARIANT
}  // namespace metal
