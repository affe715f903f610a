// What self_test.metal's kernels would do on GPUs that are not as Calla takes them to be.
#include <metal_stdlib>

#include "metal/kernels/products.h"
#include "metal/kernels/simd_matrix.h"
#include "metal/kernels/simd_tile.h"

using namespace metal;
using namespace calla_kernels;

// SIMD-groups of every eighth thread.
kernel void broken_simd_places(device uint* places [[buffer(0)]],
                               uint thread_index [[thread_index_in_threadgroup]]) {
  places[thread_index] = 32 * (thread_index % 8) + thread_index / 8;
}

// Lanes with two neighbours each in the order of rows, as the loads or the stores of matrices have them; or a
// product of other elements.
enum : uint { other_loads, other_stores, other_products };
template <uint OTHER>
kernel void broken_elements(device const float* x [[buffer(0)]], device float* loaded [[buffer(1)]],
                            device float* stored [[buffer(2)]], device float* products [[buffer(3)]],
                            uint lane [[thread_index_in_simdgroup]]) {
  const uint known = 8 * element_row(lane) + element_column(lane);
  const uint load_at = OTHER == other_loads ? 2 * lane : known;
  const uint store_at = OTHER == other_stores ? 2 * lane : known;
  simdgroup_float8x8 by_load;
  simdgroup_load(by_load, x, 8);
  const float2 pair = get_elements(by_load);
  loaded[load_at] = pair.x;
  loaded[load_at + 1] = pair.y;

  simdgroup_float8x8 by_lane;
  set_elements(by_lane, x[store_at], x[store_at + 1]);
  simdgroup_store(by_lane, stored, 8);

  simdgroup_float8x8 turned;
  simdgroup_load(turned, x, 8, ulong2(0UL), OTHER != other_products);
  simdgroup_float8x8 sums;
  simdgroup_multiply_accumulate(sums, by_lane, turned, by_load);
  simdgroup_store(sums, products, 8);
}
INSTANTIATE("broken_elements_loads", broken_elements<other_loads>)
INSTANTIATE("broken_elements_stores", broken_elements<other_stores>)
INSTANTIATE("broken_elements_products", broken_elements<other_products>)

// Products with scales and biases in each other's place.
kernel void broken_down_rows(device const uint4* words [[buffer(0)]],
                             device const ushort* scales [[buffer(1)]],
                             device const ushort* biases [[buffer(2)]],
                             device const float* inner [[buffer(3)]], device const uint* pairs [[buffer(4)]],
                             device const Block* blocks [[buffer(5)]], device float* pair_out [[buffer(6)]],
                             uint3 tile [[threadgroup_position_in_grid]],
                             uint thread_index [[thread_index_in_threadgroup]],
                             uint simd [[simdgroup_index_in_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]]) {
  using Tile = SimdTile<32, 4>;
  TG_ARRAY(float4, memory, Tile::quads);
  const TilePlace at = {tile, thread_index, simd, lane};
  experts_down_tile<Tile>(memory, {words, biases, scales}, inner, pairs, blocks[tile.x], pair_out, at);
}
