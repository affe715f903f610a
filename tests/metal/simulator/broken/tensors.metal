// What the simulator must and must not find of tensor operations.
#include <metal_stdlib>
#include <metal_tensor>

#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

using namespace metal;

// y [ROWS][16] = left [ROWS][16] * right [16][16] transposed, in tiles of 16 rows, added to what the
// destination holds: which is nothing that anybody knows, unless it is set. SIMD-groups of the operation:
// GROUPS.
template <uint ROWS, bool SET, int GROUPS>
kernel void tensor_product(device half* left [[buffer(0)]], device half* right [[buffer(1)]],
                           device float* y [[buffer(2)]]) {
  using Extents = dextents<int32_t, 2>;
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      16, 16, 16, false, true, false, mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<GROUPS>> product;
  auto a = tensor<device half, Extents, tensor_inline>(left, Extents(16, ROWS));
  auto b = tensor<device half, Extents, tensor_inline>(right, Extents(16, 16));
  auto out = tensor<device float, Extents, tensor_inline>(y, Extents(16, ROWS));
  auto sums = product.template get_destination_cooperative_tensor<decltype(a), decltype(b), float>();
  for (ushort i = 0; SET && i < sums.get_capacity(); ++i) {
    if (sums.is_valid_element(i)) sums[i] = 0.0f;
  }
  product.run(a, b, sums);
  sums.store(out);
}
INSTANTIATE("broken_tensor_destination", tensor_product<16, false, 2>)
INSTANTIATE("broken_tensor_groups", tensor_product<16, true, 1>)
INSTANTIATE("right_tensor", tensor_product<16, true, 2>)
INSTANTIATE("right_tensor_clipped", tensor_product<9, true, 2>)
