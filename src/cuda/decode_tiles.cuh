// What the kernels of decode that multiply by a matrix share: how a block walks over the tiles, and the norm
// before it.
#pragma once
#include <type_traits>
#include <utility>

#include "cuda/launch.h"
#include "cuda/linear.cuh"
#include "model/shape.h"

namespace calla::cuda {

constexpr int groups_of_warp = 4;
constexpr float residual_scale = 1.0F / 256.0F;

/// A thread's eight columns of the residual stream times a norm's gain, and on the way the sum of their
/// squares. Made before the predecessor ends. Multiplications and additions are told apart, so that no kernel
/// contracts them where another does not.
template <int R>
struct NormedColumns {
  float gain[8];
  float squares[R] = {};

  __device__ NormedColumns(const float* all, int column) { load8(all + column, gain); }

  /// Into `values` the columns of a row of x from `x` on.
  __device__ void operator()(const float* x, int row, float (&values)[8]) {
    load8(x, values);
    scale(row, values);
  }
  __device__ void scale(int row, float (&values)[8]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum = fmaf(values[i], values[i], sum);
      values[i] = __fmul_rn(values[i], gain[i] * residual_scale);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (r == row) squares[r] = sum;
    }
  }
  /// The warp's sums of squares.
  __device__ void store(float (&out)[R]) const {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float sum = sum_of_warp(squares[r]);
      if (lane_id() == 0) out[r] = sum;
    }
  }
};

/// 1 / rms of a row from its squares [warps][R].
template <int Warps, int K, int R>
__device__ float inverse_rms(const float (*squares)[R], int row) {
  return 1.0F / sqrtf(sum_partials<Warps>(&squares[0][row], R) / K + rms_norm_epsilon);
}

/// A block whose warps share the K columns of a matrix, for R rows of activations.
template <int K, int R, int Stages>
struct Layout {
  static constexpr int warps = K / (tile_columns * groups_of_warp);
  static constexpr int threads = warps * warp_threads;
  static constexpr int partial = tile_rows * R;  // floats a warp
  using Part = Activations<groups_of_warp, R>;
  struct Shared {
    StagedPart<groups_of_warp> staged[Stages][warps];
    Part parts[warps];
    float partials[Stages < 2 ? 2 : Stages][warps][partial];
    float squares[warps][R];
  };
  static constexpr std::size_t shared_bytes = sizeof(Shared);
};

/// A block walks over tiles, `step` apart, from `first` on, and has `Stages` of them on their way at any
/// time, from before its predecessor ends. prepare(part, warp) waits for the predecessor and fills a warp's
/// part of the activations; finish(tile, output, row of x, sum) is called for `Outputs` outputs of each tile
/// and row, sum(r) being the product of the tile's row r.
template <int K, int R, int Stages, int Outputs, class Prepare, class Finish>
__device__ void walk_tiles(const std::byte* matrix, int tiles, typename Layout<K, R, Stages>::Shared& shared,
                           int first, int step, int rows, Prepare prepare, Finish finish) {
  using L = Layout<K, R, Stages>;
  const int part = warp_id();
  constexpr std::size_t row_bytes = static_cast<std::size_t>(K / tile_columns) * tile_bytes;
  const std::byte* const mine = matrix + part * groups_of_warp * tile_bytes;
  const auto start = [&](int stage, int tile) {
    if (tile < tiles) shared.staged[stage][part].copy(mine + tile * row_bytes);
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < Stages; ++stage) start(stage, first + stage * step);
  prepare(shared.parts[part], part);
  int stage = 0;
  for (int round = 0, tile = first; tile < tiles; ++round, tile += step) {
    wait_for_copies<Stages - 1>();
    __syncwarp();
    TileProduct<R> product;
    product.add(shared.staged[stage][part], shared.parts[part]);
    __syncwarp();
    start(stage, tile + Stages * step);
    stage = stage + 1 == Stages ? 0 : stage + 1;
    float(&partial)[L::warps][L::partial] = shared.partials[round % 2];
    product.store(partial[part]);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < Outputs * rows; i += L::threads) {
      const int row = i / Outputs;
      finish(tile, i % Outputs, row,
             [&](int r) { return sum_partials<L::warps>(&partial[0][partial_index(r, row)], L::partial); });
    }
  }
}

/// The same for a block that has at most `Stages` tiles: all are multiplied before any is finished.
template <int K, int R, int Stages, int Outputs, class Prepare, class Finish>
__device__ void multiply_tiles(const std::byte* matrix, int tiles,
                               typename Layout<K, R, Stages>::Shared& shared, int first, int step, int rows,
                               Prepare prepare, Finish finish) {
  using L = Layout<K, R, Stages>;
  const int part = warp_id();
  constexpr std::size_t row_bytes = static_cast<std::size_t>(K / tile_columns) * tile_bytes;
  const std::byte* const mine = matrix + part * groups_of_warp * tile_bytes;
#pragma unroll
  for (int stage = 0; stage < Stages; ++stage) {
    const int tile = first + stage * step;
    if (tile < tiles) shared.staged[stage][part].copy(mine + tile * row_bytes);
    commit_copies();
  }
  prepare(shared.parts[part], part);
  const auto multiply = [&](int stage) {
    if (first + stage * step >= tiles) return;
    __syncwarp();
    TileProduct<R> product;
    product.add(shared.staged[stage][part], shared.parts[part]);
    product.store(shared.partials[stage][part]);
  };
  if constexpr (Stages >= 3) {
    wait_for_copies<2>();
    multiply(Stages - 3);
  }
  if constexpr (Stages >= 2) {
    wait_for_copies<1>();
    multiply(Stages - 2);
  }
  wait_for_copies<0>();
  multiply(Stages - 1);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < Stages * Outputs * rows; i += L::threads) {
    const int stage = i / (Outputs * rows);
    const int tile = first + stage * step;
    if (tile >= tiles) break;
    const int row = i / Outputs % rows;
    finish(tile, i % Outputs, row, [&](int r) {
      return sum_partials<L::warps>(&shared.partials[stage][0][partial_index(r, row)], L::partial);
    });
  }
}

/// Calls launch(R as a constant) for a step of up to four rows.
template <class Launch>
void with_rows(int rows, Launch launch) {
  if (rows == 1) return launch(std::integral_constant<int, 1>());
  launch(std::integral_constant<int, block_rows>());
}

/// Launches a kernel that asks for more shared memory than a block gets unasked.
template <class... Parameters, class... Arguments>
void launch_large(cudaStream_t stream, const Grid& grid, void (*kernel)(Parameters...),
                  Arguments&&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(grid.shared)),
        "asking for shared memory");
  launch_chained(stream, grid, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace calla::cuda
