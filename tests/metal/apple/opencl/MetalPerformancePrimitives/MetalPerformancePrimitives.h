// The matrix product of Metal's tensor operations.
#pragma once
#include "../metal_tensor"

namespace mpp {
namespace tensor_ops {

using metal::execution_simdgroups;

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };

  constexpr matmul2d_descriptor(int rows, int columns, int columns_of_left, bool transpose_left = false,
                                bool transpose_right = false, bool relaxed_precision = false,
                                mode what = mode::multiply)
      : number(rows + columns + columns_of_left + transpose_left + transpose_right + relaxed_precision +
               int(what)) {}

  // C++17 has no template parameters of this type, Metal's compiler has.
  constexpr operator int() const { return number; }
  int number;
};

template <class T>
struct cooperative_tensor {
  ushort get_capacity() const;
  bool is_valid_element(ushort i) const;
  T& operator[](ushort i);
  template <class Tensor>
  void store(__private Tensor& to) const;
};

template <int DESCRIPTOR, class Scope>
struct matmul2d {
  template <class Left, class Right, class T>
  cooperative_tensor<T> get_destination_cooperative_tensor() const;
  template <class Left, class Right, class Destination>
  void run(__private Left& left, __private Right& right, __private Destination& destination) const;
};

}  // namespace tensor_ops
}  // namespace mpp
