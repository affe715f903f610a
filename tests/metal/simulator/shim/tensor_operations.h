// The matrix product of Metal's tensor operations, as far as the kernels use it, with its traps: a result's
// elements are on other threads in each threadgroup, some of a thread's are none, and they hold no number
// until something is written to them.
#pragma once
#include "metal/simulator/shim/tensor.h"

namespace mpp::tensor_ops {
inline namespace CALLA_VARIANT {

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };

  constexpr matmul2d_descriptor(int rows, int columns, int depth, bool left_transposed = false,
                                bool right_transposed = false, bool relaxed = false,
                                mode what = mode::multiply)
      : m(rows),
        n(columns),
        k(depth),
        transpose_left(left_transposed),
        transpose_right(right_transposed),
        relaxed_precision(relaxed),
        matmul_mode(what) {}

  int m;
  int n;
  int k;
  bool transpose_left;
  bool transpose_right;
  bool relaxed_precision;
  mode matmul_mode;
};

CALLA_UNWATCHED inline void this_position(calla::metal::simulation::Attribute attribute,
                                          unsigned (&values)[3]) {
  position(*calla::metal::simulation::current, attribute, values);
}
CALLA_UNWATCHED inline void meet_threadgroup(const char* file, uint line) {
  using namespace calla::metal::simulation;
  meet(*current, Meeting::threadgroup_function, 0, {file, line});
}
CALLA_UNWATCHED inline uint this_thread() { return calla::metal::simulation::current->index; }

/// A result [rows][columns], divided among `threads`.
template <class T, int rows, int columns, int threads>
class cooperative_tensor {
  static_assert(rows * columns % threads == 0);

 public:
  cooperative_tensor() {
    const auto mixed = static_cast<uint>(calla::metal::simulation::threadgroup_random());
    factor_ = (mixed >> 8 | 1U);
    offset_ = mixed ^ mixed >> 15;
    for (T& value : values_) value = T(__builtin_nanf(""));
  }

  /// One of a thread's elements is none.
  static constexpr uint16_t get_capacity() { return rows * columns / threads + 1; }
  bool is_valid_element(uint16_t i) const { return i + 1 < get_capacity(); }
  T& operator[](uint16_t i) { return values_[i]; }
  int column(uint16_t i) const { return static_cast<int>(element(i) % columns); }
  int row(uint16_t i) const { return static_cast<int>(element(i) / columns); }

  template <class Extents>
  void store(metal::tensor<T, Extents, metal::tensor_inline>& to) const {
    for (uint16_t i = 0; is_valid_element(i); ++i) {
      if (to.has(column(i), row(i))) to.at(column(i), row(i)) = values_[i];
    }
  }

 private:
  static_assert((rows * columns & (rows * columns - 1)) == 0, "an odd factor permutes a power of two");
  uint element(uint16_t i) const {
    const uint number = this_thread() * (get_capacity() - 1U) + i;
    return (number * factor_ + offset_) % (rows * columns);
  }

  T values_[rows * columns / threads + 1];
  uint factor_;
  uint offset_;
};

template <matmul2d_descriptor descriptor, class Scope>
class matmul2d {
  static constexpr int depth = descriptor.k;
  static_assert(descriptor.m % 8 == 0 && descriptor.n % 8 == 0 && depth % 16 == 0);
  static_assert(descriptor.m % 16 == 0 || descriptor.n % 16 == 0);
  static_assert(!descriptor.transpose_left && descriptor.transpose_right, "what the kernels use");

 public:
  template <class Left, class Right, class T>
  cooperative_tensor<T, descriptor.m, descriptor.n, Scope::simdgroups * 32>
  get_destination_cooperative_tensor() const {
    return {};
  }

  /// destination [row][column] = or += the products of left [row][..] and right [column][..]. Holds no
  /// barrier: the kernel's own must do.
  template <class Left, class Right, class Destination>
  void run(Left& left, Right& right, Destination& destination, CALLA_SITE) const {
    using namespace calla::metal::simulation;
    meet_threadgroup(file, line);
    unsigned groups[3];
    this_position(Attribute::simdgroups_per_threadgroup, groups);
    if (groups[0] != Scope::simdgroups)
      report("an operation of other SIMD-groups than there are", groups[0], {file, line});
    for (uint16_t i = 0; destination.is_valid_element(i); ++i) {
      float sum = 0.0f;
      for (int k = 0; k < depth; ++k) {
        const int column = destination.column(i);
        const int row = destination.row(i);
        if (!left.has(k, row) || !right.has(k, column)) continue;
        sum += static_cast<float>(left.at(k, row)) * static_cast<float>(right.at(k, column));
      }
      if (descriptor.matmul_mode == matmul2d_descriptor::mode::multiply) {
        destination[i] = sum;
      } else {
        destination[i] += sum;
      }
    }
  }
};

}  // namespace CALLA_VARIANT
}  // namespace mpp::tensor_ops
