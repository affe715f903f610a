// What the kernels of decode that multiply by a matrix share: how a block walks over the tiles, and the norm
// before it.
#pragma once
#include <algorithm>
#include <type_traits>

#include "cuda/linear.cuh"
#include "model/shape.h"

namespace calla::cuda {

constexpr int groups_of_warp = 4;
constexpr float residual_scale = 1.0F / 256.0F;

/// The residual stream times a norm's gain, and on the way the sum of its squares.
struct NormedRows {
  const float* x;
  const float* gain;
  int columns;
  float* squares;  // of this thread: one a block of four rows

  __device__ float2 operator()(int row, int k) const {
    const float2 value = *reinterpret_cast<const float2*>(x + row * columns + k);
    const float2 scale = *reinterpret_cast<const float2*>(gain + k);
    squares[row / block_rows] += value.x * value.x + value.y * value.y;
    return {value.x * scale.x * residual_scale, value.y * scale.y * residual_scale};
  }
};

/// Adds a thread's squares to those of its warp: [4 NB rows], written by the lanes of the high columns.
template <int NB>
__device__ void store_squares(const float (&squares)[NB], float* out) {
#pragma unroll
  for (int nb = 0; nb < NB; ++nb) {
    float sum = squares[nb];
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
    if (lane_id() % 8 == 0) out[block_rows * nb + lane_id() / 8] = sum;
  }
}

/// 1 / rms of a row from its squares [warps][stride].
template <int Warps, int K>
__device__ float inverse_rms(const float* squares, int stride) {
  return 1.0F / sqrtf(sum_partials<Warps>(squares, stride) / K + rms_norm_epsilon);
}

template <int K, int NB>
struct Layout {
  static constexpr int warps = K / (tile_columns * groups_of_warp);
  static constexpr int threads = warps * warp_threads;
  static constexpr int rows = block_rows * NB;
  static constexpr int partial = tile_rows * rows;  // floats a warp
};

/// A block walks over tiles, `step` apart, from `first` on. load(activations, part) fills a warp's part of
/// the activations; finish(tile, output, row of x, sum) is called for `Outputs` outputs of each tile and row,
/// sum(r) being the product of the tile's row r.
template <int K, int NB, int Outputs, class Load, class Finish>
__device__ void walk_tiles(const Tiles& w, int first, int step, int rows, Load load, Finish finish) {
  using L = Layout<K, NB>;
  __shared__ float partials[2][L::warps][L::partial];
  const int part = warp_id();
  const int tiles = w.rows / tile_rows;
  constexpr std::size_t row_bytes = static_cast<std::size_t>(K / tile_columns) * tile_bytes;
  const std::byte* const mine = w.data + part * groups_of_warp * tile_bytes;

  int tile = first;
  TilePart<groups_of_warp> weights;
  weights.load(mine + tile * row_bytes);
  wait_for_predecessor();
  release_successor();

  Activations<groups_of_warp, NB> x;
  load(x, part);
  for (int round = 0; tile < tiles; ++round, tile += step) {
    TileProduct<NB> product;
    const TilePart<groups_of_warp> now = weights;
    if (tile + step < tiles) weights.load(mine + (tile + step) * row_bytes);
    product.add(now, x);
    float(&partial)[L::warps][L::partial] = partials[round % 2];
    product.store(partial[part]);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < Outputs * rows; i += L::threads) {
      const int row = i / Outputs;
      finish(tile, i % Outputs, row,
             [&](int r) { return sum_partials<L::warps>(&partial[0][r * L::rows + row], L::partial); });
    }
  }
}

/// Blocks of four rows that a count of rows needs, as a constant.
template <class Launch>
void with_row_blocks(int rows, Launch launch) {
  if (rows <= block_rows) return launch(std::integral_constant<int, 1>());
  if (rows <= 2 * block_rows) return launch(std::integral_constant<int, 2>());
  launch(std::integral_constant<int, 4>());
}

/// With few rows a block multiplies one tile, read before the predecessor ends; with more, what it knows of
/// the activations serves several.
inline unsigned blocks_for(int tiles, int row_blocks, int most_blocks) {
  return static_cast<unsigned>(row_blocks == 1 ? tiles : std::min(tiles, most_blocks));
}

}  // namespace calla::cuda
