// What the kernels of decode for more than four rows share.
//
// A warp has its part of the activations of all rows in registers for as long as the block lives; shared
// memory, which could not deliver them as fast as the weights come, is asked for weights only. Blocks have
// even shares of the tiles, neighbours, and of those some on their way at any time. Each product and each sum
// is made as decode_tiles.cuh makes it for a row alone.
#pragma once
#include "cuda/decode_groups.h"
#include "cuda/decode_tiles.cuh"

namespace calla::cuda {

/// A block whose warps share the K columns of a matrix, for R rows of activations: with `Stages` tiles on
/// their way and `Together` between two barriers.
template <int K, int R, int Stages, int Together>
struct ManyLayout {
  static constexpr int warps = K / (tile_columns * groups_of_warp);
  static constexpr int threads = warps * warp_threads;
  static constexpr int columns = K;
  static constexpr int rows = R;
  static constexpr int stages = Stages;
  static constexpr int together = Together;
  static constexpr int outputs = tile_rows * R;  // of a tile
  using X = Operand<groups_of_warp, R>;
  struct Shared {
    StagedPart<groups_of_warp> staged[Stages][warps];
    union {
      Activations<groups_of_warp, few_rows> parts[warps];  // on their way to the registers
      float partials[2][Together][warps][outputs];         // from then on
    };
    float squares[warps][R];
    float factors[R];
  };
};

/// Fills a warp's part of the activations by way of shared memory: load(row, values) gives a thread its eight
/// columns from 8 * lane on, change(row, values) brings them into the range of half. All rows are loaded
/// before any is used. Rows from `rows` on hold whatever is there; no other depends on them.
template <int G, int R, class Load, class Change>
__device__ void fill_operand(Operand<G, R>& x, Activations<G, few_rows>& part, int rows, Load load,
                             Change change) {
  float values[R][8] = {};
#pragma unroll
  for (int r = 0; r < R; ++r) {
    if (r < rows && lane_id() < Activations<G, few_rows>::lanes) load(r, values[r]);
  }
#pragma unroll
  for (int first = 0; first < R; first += few_rows) {
#pragma unroll
    for (int r = 0; r < few_rows; ++r) {
      if (first + r >= rows) continue;
      change(first + r, values[first + r]);
      part.store(r, values[first + r]);
    }
    __syncwarp();
    x.take(first, part);
    __syncwarp();
  }
}

/// Fills the block's activations with norm(x) but for its factor, which goes to shared.factors for after the
/// next barrier. Waits for the predecessor.
template <class L>
__device__ void fill_normed(typename L::X& activations, typename L::Shared& shared, const float* gain,
                            const float* x, int rows) {
  const int warp = warp_id();
  const int column = warp * warp_columns + lane_column();
  NormedColumns<L::rows> normed(gain, column);
  release_successor();
  wait_for_predecessor();
  fill_operand(
      activations, shared.parts[warp], rows,
      [&](int row, float(&values)[8]) {
        load_columns(x + static_cast<std::size_t>(row) * L::columns + column, values);
      },
      [&](int row, float(&values)[8]) { normed.scale(row, values); });
  normed.store(shared.squares[warp]);
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x);
  if (row < rows) shared.factors[row] = inverse_rms<L::warps, L::columns, L::rows>(shared.squares, row);
}

/// An output of a block, and which of its thread's it is between two barriers.
struct ManyOutput {
  int tile;
  int place;  // of the tile, among those between two barriers
  int r;      // row of the tile
  int row;    // of the activations
  int turn;
};

/// The outputs of a thread between two barriers, of a block with the tiles first .. last - 1.
template <class L, class Visit>
__device__ void visit_outputs(int first, int last, int rows, Visit visit) {
  constexpr int all = L::together * L::outputs;
#pragma unroll 2
  for (int turn = 0; turn < (all + L::threads - 1) / L::threads; ++turn) {
    const int i = turn * L::threads + static_cast<int>(threadIdx.x);
    const ManyOutput output{first + i / L::outputs, i / L::outputs, i % tile_rows, i / tile_rows % L::rows,
                            turn};
    if (i < all && output.tile < last && output.row < rows) visit(output);
  }
}

/// A block multiplies the tiles first .. last - 1 of a matrix by what prepare(activations) gives, in which
/// all warps meet when shared.parts are read; finish(output, sum) is called for each output, sum(r) being the
/// product of the tile's row r.
template <class L, class Prepare, class Finish>
__device__ void walk_many(const std::byte* matrix, int first, int last, typename L::Shared& shared, int rows,
                          Prepare prepare, Finish finish) {
  const int part = warp_id();
  constexpr std::size_t row_bytes = static_cast<std::size_t>(L::columns / tile_columns) * tile_bytes;
  const std::byte* const mine = matrix + part * groups_of_warp * tile_bytes;
  const auto start = [&](int stage, int tile) {
    if (tile < last) shared.staged[stage][part].copy(mine + tile * row_bytes);
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < L::stages; ++stage) start(stage, first + stage);
  typename L::X x;
  prepare(x);
  int stage = 0;
  for (int round = 0, tile = first; tile < last; ++round, tile += L::together) {
    auto& partials = shared.partials[round % 2];
#pragma unroll
    for (int place = 0; place < L::together; ++place) {
      if (tile + place >= last) continue;
      wait_for_copies<L::stages - 1>();
      __syncwarp();
      TileProduct<L::rows> product;
      product.add(shared.staged[stage][part], x);
      __syncwarp();
      start(stage, tile + place + L::stages);
      stage = stage + 1 == L::stages ? 0 : stage + 1;
      product.store(x, partials[place][part]);
    }
    __syncthreads();
    visit_outputs<L>(tile, last, rows, [&](const ManyOutput& output) {
      finish(output, [&](int r) {
        return sum_partials<L::warps>(&partials[output.place][0][partial_index(r, output.row)], L::outputs);
      });
    });
  }
}

}  // namespace calla::cuda
