// What the kernels of decode that multiply by a matrix share: how a block walks over the tiles, and the norm
// before it.
#pragma once
#include <algorithm>
#include <type_traits>
#include <utility>

#include "cuda/decode.h"
#include "cuda/launch.h"
#include "cuda/linear.cuh"
#include "cuda/staged_tiles.cuh"
#include "model/shape.h"

namespace calla::cuda {

constexpr int groups_of_warp = 4;
constexpr int warp_columns = groups_of_warp * tile_columns;

/// A thread's eight columns of the residual stream times a norm's gain, and on the way the sum of their
/// squares. Made before the predecessor ends. Multiplications and additions are told apart, so that no kernel
/// contracts them where another does not.
template <int R>
struct NormedColumns {
  float gain[8];
  float squares[R] = {};

  __device__ NormedColumns(const float* all, int column) { load_columns(all + column, gain); }

  /// Into `values` the columns of a row of x from `x` on.
  __device__ void operator()(const float* x, int row, float (&values)[8]) {
    load_columns(x, values);
    scale(row, values);
  }
  __device__ void scale(int row, float (&values)[8]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum = fmaf(values[i], values[i], sum);
      values[i] = __fmul_rn(values[i], gain[i]);
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
  return rsqrtf(sum_partials<Warps>(&squares[0][row], R) / K + rms_norm_epsilon);
}

/// 1 / rms of what a head of DeltaNet put out, from the sums of its squares.
__device__ inline float head_factor(const float* squares, int head) {
  const float4 s = reinterpret_cast<const float4*>(squares)[head];
  return rsqrtf((s.x + s.y + s.z + s.w) / Shape::delta_head_dim + rms_norm_epsilon);
}

/// A block of some teams of warps, which share the K columns of a matrix, for R rows of activations. Each
/// team has `Stages` of its tiles, all have the activations that the first team fills in.
template <int K, int R, int Stages, int Teams = 1>
struct Layout {
  static constexpr int warps = K / (tile_columns * groups_of_warp);  // of a team
  static constexpr int threads = warps * warp_threads * Teams;
  static constexpr int stages = Stages;
  static constexpr int teams = Teams;
  static constexpr int tiles = Stages * Teams;
  static constexpr int rows = R;
  static constexpr int partial = tile_rows * R;  // floats a warp
  static constexpr std::size_t row_bytes = static_cast<std::size_t>(K / tile_columns) * tile_bytes;
  using Product = TileProduct<R>;
  struct Shared {
    StagedTiles<tiles, warps, groups_of_warp> staged;
    Activations<groups_of_warp, R> parts[warps];
    float partials[tiles][warps][partial];
    float squares[warps][R];
  };
  static constexpr std::size_t shared_bytes = sizeof(Shared);

  __device__ static int part() { return warp_id() % warps; }
  __device__ static int team() { return Teams == 1 ? 0 : warp_id() / warps; }
};

/// The tiles of a block: `step` apart, from `first` on, those before `end`.
struct TileRange {
  const std::byte* matrix;
  int first;
  int step;
  int end;
};

/// Starts to bring a block's tiles, at most L::tiles, into shared memory; a team has every L::teams-th. By
/// all warps; on Hopper the first one is enough. The barriers are prepared.
template <class L>
__device__ void start_tiles(const TileRange& tiles, typename L::Shared& shared) {
#pragma unroll
  for (int i = 0; i < L::tiles; ++i) {
    const int tile = tiles.first + i * tiles.step;
    const bool comes = tile < tiles.end && (bulk_copies || i % L::teams == L::team());
    shared.staged.start(i, comes ? tiles.matrix + tile * L::row_bytes : nullptr, L::part(), threadIdx.x == 0);
  }
}

/// Fills a warp's part of the activations with norm(x) but for its factor.
template <int K, int R>
__device__ void fill_normed(Activations<groups_of_warp, R>& part, NormedColumns<R>& normed, const float* x,
                            int column, int rows) {
  part.fill(rows, [&](int row, float(&values)[8]) {
    normed(x + static_cast<std::size_t>(row) * K + column, row, values);
  });
}

/// Multiplies the tiles that were started by what the first team has put into shared.parts. settle() is what
/// the first team still has to do before all meet; then finish(tile, output, row of x, sum) is called for
/// `Outputs` outputs of each tile and row, sum(r) being the product of the tile's row r.
template <class L, int Outputs, class Settle, class Finish>
__device__ void multiply_tiles(const TileRange& tiles, typename L::Shared& shared, int rows, Settle settle,
                               Finish finish) {
  const int part = L::part();
  if constexpr (L::teams > 1) __syncthreads();
#pragma unroll
  for (int stage = 0; stage < L::stages; ++stage) {
    const int i = stage * L::teams + L::team();
    if (tiles.first + i * tiles.step >= tiles.end) break;
    shared.staged.wait(i);
    typename L::Product product;
    product.add(shared.staged.parts[i][part], shared.parts[part]);
    product.store(shared.parts[part], shared.partials[i][part]);
  }
  if (L::team() == 0) settle();
  __syncthreads();
  if constexpr (L::rows == 1) rows = 1;  // so that the places below are constants
  for (int i = static_cast<int>(threadIdx.x); i < L::tiles * Outputs * rows; i += L::threads) {
    const int of_tile = i / (Outputs * rows);
    const int tile = tiles.first + of_tile * tiles.step;
    if (tile >= tiles.end) break;
    const int row = i / Outputs % rows;
    finish(tile, i % Outputs, row, [&](int r) {
      return sum_partials<L::warps>(&shared.partials[of_tile][0][partial_index(r, row)], L::partial);
    });
  }
}

/// The same for any number of tiles, L::stages of them on their way at any time, from before the predecessor
/// ends: prepare(part, warp) waits for it and fills a warp's part of the activations.
template <class L, int Outputs, class Prepare, class Finish>
__device__ void walk_tiles(const TileRange& tiles, typename L::Shared& shared, int rows, Prepare prepare,
                           Finish finish) {
  const int part = warp_id();
  const std::byte* const mine = tiles.matrix + part * groups_of_warp * tile_bytes;
  const auto start = [&](int stage, int tile) {
    if (tile < tiles.end) shared.staged.parts[stage][part].copy(mine + tile * L::row_bytes);
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < L::stages; ++stage) start(stage, tiles.first + stage * tiles.step);
  prepare(shared.parts[part], part);
  int stage = 0;
  for (int round = 0, tile = tiles.first; tile < tiles.end; ++round, tile += tiles.step) {
    wait_for_copies<L::stages - 1>();
    __syncwarp();
    typename L::Product product;
    product.add(shared.staged.parts[stage][part], shared.parts[part]);
    __syncwarp();
    start(stage, tile + L::stages * tiles.step);
    stage = stage + 1 == L::stages ? 0 : stage + 1;
    float(&partial)[L::warps][L::partial] = shared.partials[round % 2];
    product.store(shared.parts[part], partial[part]);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < Outputs * rows; i += L::threads) {
      const int row = i / Outputs;
      finish(tile, i % Outputs, row,
             [&](int r) { return sum_partials<L::warps>(&partial[0][partial_index(r, row)], L::partial); });
    }
  }
}

/// Whether the rows of a step go together, through the kernels for many.
inline bool go_together(const DecodeState& state, int rows) {
  return rows > few_rows && state.block_memory >= many_rows_memory;
}

/// Calls launch(first row, rows) for few rows at a time.
template <class Launch>
void in_turns(int rows, Launch launch) {
  for (int first = 0; first < rows; first += few_rows) launch(first, std::min(few_rows, rows - first));
}

/// Calls launch(R as a constant) for a step of up to four rows.
template <class Launch>
void with_rows(int rows, Launch launch) {
  if (rows == 1) return launch(std::integral_constant<int, 1>());
  if (rows == 2) return launch(std::integral_constant<int, 2>());
  launch(std::integral_constant<int, few_rows>());
}

}  // namespace calla::cuda
