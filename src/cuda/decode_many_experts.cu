// The experts of decode for more than four rows.
//
// Formula and rounding: decode_experts.cu. Five kernels: the router with the shared expert's first half; the
// list of the chosen experts, by one block, which is faster than by each of those that need it; the chosen
// experts' first halves, and their second halves, each once for up to four rows that go to the same expert;
// the shared expert's second half with the sum of all. A row's sum is made in the order of a row alone: the
// chosen by their logits, each by the parts of its columns, then the shared expert. So the second halves are
// stored part by part. Bytes moved in a layer of the 35B: 1.77 MB for each expert that a row goes to, once
// (up to 102 of them are to be expected of 16 rows), and 4.2 MB of answers written and read, which stay in
// the second-level cache. Bound by the experts' weights.
#include <cuda_runtime.h>

#include "cuda/decode_choice.cuh"
#include "cuda/decode_groups.cuh"
#include "cuda/decode_many.cuh"
#include "cuda/decode_many.h"
#include "cuda/launch.h"

namespace calla::cuda {
namespace {

// A block reads all activations of its rows, which are as many bytes as several tiles: so it has two tiles,
// and half the rows.
constexpr int router_rows = 8;
template <int K>
using RouterLayout = ManyLayout<K, router_rows, router_planes, router_planes>;

/// The first blocks have two tiles of the shared expert each, the others a row of router tiles; blockIdx.y
/// tells which rows.
template <int K, int Experts>
__global__ __launch_bounds__(RouterLayout<K>::threads,
                             1) void router_many_kernel(DeviceLayer layer, DecodeState state, int rows) {
  using L = RouterLayout<K>;
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  const int tiles = layer.shared_gate_up.rows / tile_rows;
  const int router_block = static_cast<int>(blockIdx.x) - tiles / L::together;
  const bool is_router = router_block >= 0;
  const int first = (is_router ? router_block : static_cast<int>(blockIdx.x)) * L::together;
  const int first_row = static_cast<int>(blockIdx.y) * L::rows;
  const int block_rows = min(L::rows, rows - first_row);
  walk_many<L>(
      is_router ? layer.router_tiles.data : layer.shared_gate_up.data, first, first + L::together, shared,
      block_rows,
      [&](auto& activations) {
        fill_normed<L>(activations, shared, layer.post_attention_norm,
                       state.x + static_cast<std::size_t>(first_row) * K, block_rows);
      },
      [&](const ManyOutput& at, auto sum) {
        const float factor = shared.factors[at.row];
        const int row = first_row + at.row;
        if (is_router) {
          const int expert = router_block * tile_rows + at.r;
          if (at.place != 0 || expert > Experts) return;
          const float high =
              sum_partials<L::warps>(&shared.partials[0][1][0][partial_index(at.r, at.row)], L::outputs);
          state.router[row * (Experts + 1) + expert] = (sum(at.r) + high) * factor;
        } else {
          constexpr int channels = tile_rows / 2;  // of a tile
          if (at.r >= channels) return;
          state.shared[row * (tiles * channels) + at.tile * channels + at.r] =
              silu(sum(at.r) * factor) * (sum(at.r + channels) * factor);
        }
      });
}

template <int Experts>
__global__ __launch_bounds__(GroupScratch<Experts>::threads) void list_kernel(DecodeState state, int rows) {
  extern __shared__ __align__(16) unsigned char raw[];
  wait_for_predecessor();
  release_successor();
  list_groups(state, rows, *reinterpret_cast<GroupScratch<Experts>*>(raw), *state.groups);
}

constexpr int gate_up_stages = 3;
constexpr int down_stages = 3;
// With this many blocks every SM of an H200 has two.
constexpr unsigned group_blocks = 264;

template <class Model>
struct GateUpShared {
  static constexpr int warps = Model::shape.hidden / (tile_columns * groups_of_warp);
  static constexpr int outputs = tile_rows * group_rows;
  StagedPart<groups_of_warp> staged[gate_up_stages][warps];
  Activations<groups_of_warp, group_rows> parts[warps];
  float partials[2][warps][outputs];
  float squares[2][warps][group_rows];
  Groups groups;
};

/// The first halves: blocks have even shares of the tiles of all groups.
template <class Model>
__global__ __launch_bounds__(GateUpShared<Model>::warps* warp_threads,
                             2) void gate_up_many_kernel(DeviceLayer layer, DecodeState state) {
  constexpr int K = Model::shape.hidden;
  using Shared = GateUpShared<Model>;
  constexpr int warps = Shared::warps;
  constexpr int channels = tile_rows / 2;                            // of a tile
  constexpr int tiles = 2 * Model::shape.expert_hidden / tile_rows;  // of an expert
  constexpr std::size_t expert_bytes = tiled_bytes(tiles * tile_rows, K);
  static_assert(channels * group_rows == warp_threads);
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<Shared*>(raw);
  const int part = warp_id();
  const int column = part * warp_columns + lane_column();
  const float* const gain = layer.post_attention_norm;
  const std::byte* const mine = layer.expert_gate_up.data + part * groups_of_warp * tile_bytes;
  wait_for_predecessor();
  release_successor();

  fetch_groups(shared.groups, state.groups);
  __syncthreads();
  const int count = shared.groups.count;
  const int first = first_of_share(count * tiles, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x));
  const int last =
      first_of_share(count * tiles, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x) + 1);
  const auto start = [&](int stage, int at) {
    if (at < last) {
      constexpr std::size_t row_bytes = static_cast<std::size_t>(K / tile_columns) * tile_bytes;
      shared.staged[stage][part].copy(mine + shared.groups.of[at / tiles].expert * expert_bytes +
                                      at % tiles * row_bytes);
    }
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < gate_up_stages; ++stage) start(stage, first + stage);

  Operand<groups_of_warp, group_rows> x;
  int stage = 0;
  for (int round = 0, at = first; at < last; ++round, ++at) {
    const int index = at / tiles;
    const ExpertGroup& group = shared.groups.of[index];
    // Of the groups before, the last may still be asked for its squares.
    auto& squares = shared.squares[index % 2];
    if (at == first || at % tiles == 0) {
      NormedColumns<group_rows> normed(gain, column);
      fill_operand(
          x, shared.parts[part], group.count,
          [&](int r, float(&values)[8]) {
            load_columns(state.x + static_cast<std::size_t>(group.picks[r] / top) * K + column, values);
          },
          [&](int r, float(&values)[8]) { normed.scale(r, values); });
      normed.store(squares[part]);
    }
    wait_for_copies<gate_up_stages - 1>();
    __syncwarp();
    TileProduct<group_rows> product;
    product.add(shared.staged[stage][part], x);
    __syncwarp();
    start(stage, at + gate_up_stages);
    stage = stage + 1 == gate_up_stages ? 0 : stage + 1;
    auto& partials = shared.partials[round % 2];
    product.store(x, partials[part]);
    __syncthreads();
    // The warps take turns to finish a tile.
    if (round % warps != part) continue;
    const int channel = lane_id() % channels;
    const int r = lane_id() / channels;
    if (r >= group.count) continue;
    const auto sum = [&](int tile_row) {
      return sum_partials<warps>(&partials[0][partial_index(tile_row, r)], Shared::outputs);
    };
    const float factor = inverse_rms<warps, K, group_rows>(squares, r);
    state.inner[group.picks[r] * (tiles * channels) + at % tiles * channels + channel] =
        silu(sum(channel) * factor) * (sum(channel + channels) * factor);
  }
}

constexpr int down_warps = 8;

template <class Model>
struct DownManyShared {
  static constexpr int groups_of_part = DownParts<Model::shape.expert_hidden>::groups_of_part;
  StagedPart<groups_of_part> staged[down_stages][down_warps];
  Activations<groups_of_part, group_rows> parts[down_warps];
  Groups groups;
};

/// The second halves: a warp has the same part of the columns of all its tiles, and no need of the others.
/// What they are is known, and their weights are on their way, before the predecessor ends.
template <class Model>
__global__ __launch_bounds__(down_warps* warp_threads, 2) void down_many_kernel(DeviceLayer layer,
                                                                                DecodeState state) {
  constexpr Shape S = Model::shape;
  constexpr int K = S.expert_hidden;
  using P = DownParts<K>;
  using Shared = DownManyShared<Model>;
  static_assert(down_warps % P::warps == 0);
  constexpr int together = down_warps / P::warps;         // tiles
  constexpr int steps = S.hidden / tile_rows / together;  // of a group
  static_assert(steps * together * tile_rows == S.hidden);
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<Shared*>(raw);
  const int warp = warp_id();
  const int part = warp % P::warps;
  const int tile_of_step = warp / P::warps;

  fetch_groups(shared.groups, state.groups);
  __syncthreads();
  const int count = shared.groups.count;
  const int first = first_of_share(count * steps, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x));
  const int last =
      first_of_share(count * steps, static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x) + 1);
  const auto start = [&](int stage, int at) {
    if (at < last) {
      const int tile = at % steps * together + tile_of_step;
      shared.staged[stage][warp].copy(
          layer.expert_down.data + shared.groups.of[at / steps].expert * tiled_bytes(S.hidden, K) +
          (static_cast<std::size_t>(tile) * P::groups + part * P::groups_of_part) * tile_bytes);
    }
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < down_stages; ++stage) start(stage, first + stage);
  release_successor();
  wait_for_predecessor();

  Operand<P::groups_of_part, group_rows> x;
  using Product = TileProduct<group_rows>;
  int picks[Product::row_blocks] = {};
  float factors[Product::row_blocks] = {};
  int stage = 0;
  for (int at = first; at < last; ++at) {
    const ExpertGroup& group = shared.groups.of[at / steps];
    if (at == first || at % steps == 0) {
      fill_operand(
          x, shared.parts[warp], group.count,
          [&](int i, float(&values)[8]) {
            load_columns(
                state.inner + group.picks[i] * K + part * P::groups_of_part * tile_columns + lane_column(),
                values);
          },
          [](int, float(&)[8]) {});
#pragma unroll
      for (int nb = 0; nb < Product::row_blocks; ++nb) {
        picks[nb] = group.picks[Product::lane_row(nb)];
        factors[nb] = shared.groups.shares[picks[nb]];
      }
    }
    wait_for_copies<down_stages - 1>();
    __syncwarp();
    Product product;
    product.add(shared.staged[stage][warp], x);
    __syncwarp();
    start(stage, at + down_stages);
    stage = stage + 1 == down_stages ? 0 : stage + 1;
    const int tile = at % steps * together + tile_of_step;
#pragma unroll
    for (int nb = 0; nb < Product::row_blocks; ++nb) {
      const float sum = product.value(x, nb);
      if (Product::lane_row(nb) < group.count)
        state.answers[static_cast<std::size_t>(picks[nb] * P::warps + part) * S.hidden + tile * tile_rows +
                      Product::lane_tile_row()] = sum * factors[nb];
    }
  }
}

template <class Model>
struct CombineShared {
  using P = DownParts<Model::shape.shared_expert_hidden>;
  static constexpr int warps = P::warps * most_rows / group_rows;
  StagedPart<P::groups_of_part> staged[warps];
  Activations<P::groups_of_part, group_rows> parts[warps];
  float partials[P::warps][tile_rows * most_rows];
};

/// A block has a tile of the shared expert's second half, a warp a part of it for four rows, and then of the
/// sum. All but the answers is older than the predecessor.
template <class Model>
__global__ __launch_bounds__(CombineShared<Model>::warps* warp_threads) void combine_many_kernel(
    DeviceLayer layer, DecodeState state, int rows) {
  constexpr Shape S = Model::shape;
  constexpr int K = S.shared_expert_hidden;
  using Shared = CombineShared<Model>;
  using P = typename Shared::P;
  constexpr int answers = top * DownParts<S.expert_hidden>::warps;
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<Shared*>(raw);
  const int tile = static_cast<int>(blockIdx.x);
  const int warp = warp_id();
  const int part = warp % P::warps;
  const int first_row = warp / P::warps * group_rows;
  if (first_row < rows) {
    shared.staged[warp].copy(layer.shared_down.data +
                             (static_cast<std::size_t>(tile) * P::groups + part * P::groups_of_part) *
                                 tile_bytes);
    commit_copies();
    Operand<P::groups_of_part, group_rows> x;
    fill_operand(
        x, shared.parts[warp], rows - first_row,
        [&](int r, float(&values)[8]) {
          load_columns(
              state.shared + (first_row + r) * K + part * P::groups_of_part * tile_columns + lane_column(),
              values);
        },
        [](int, float(&)[8]) {});
    wait_for_copies<0>();
    __syncwarp();
    TileProduct<group_rows> product;
    product.add(shared.staged[warp], x);
    using Product = TileProduct<group_rows>;
#pragma unroll
    for (int nb = 0; nb < Product::row_blocks; ++nb) {
      const int row = min(first_row + Product::lane_row(nb), rows - 1);
      const float share = sigmoid(__ldcg(state.router + row * (S.experts + 1) + S.experts));
      shared.partials[part][partial_index(Product::lane_tile_row(), first_row + Product::lane_row(nb))] =
          product.value(x, nb) * share;
    }
  }
  release_successor();
  wait_for_predecessor();
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * tile_rows; i += Shared::warps * warp_threads) {
    const int row = i / tile_rows;
    const int column = tile * tile_rows + i % tile_rows;
    float* const x = state.x + static_cast<std::size_t>(row) * S.hidden + column;
    const float residual = __ldcg(x);
    float answer[answers];
#pragma unroll
    for (int a = 0; a < answers; ++a)
      answer[a] = __ldcg(state.answers + static_cast<std::size_t>(row * answers + a) * S.hidden + column);
    float sum = 0;
#pragma unroll
    for (const float value : answer) sum += value;
#pragma unroll
    for (int p = 0; p < P::warps; ++p) sum += shared.partials[p][i];
    *x = residual + sum;
  }
}

}  // namespace

template <class Model>
void many_experts(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows) {
  constexpr Shape S = Model::shape;
  using Router = RouterLayout<S.hidden>;
  static_assert(2 * S.shared_expert_hidden % (router_planes * tile_rows) == 0);
  constexpr int router_blocks =
      2 * S.shared_expert_hidden / tile_rows / router_planes + tiles_of_rows(S.experts + 1);
  launch_large(stream,
               {dim3(router_blocks, static_cast<unsigned>((rows + router_rows - 1) / router_rows)),
                Router::threads, sizeof(typename Router::Shared)},
               router_many_kernel<S.hidden, S.experts>, layer, state, rows);
  using List = GroupScratch<S.experts>;
  launch_large(stream, {dim3(1), List::threads, sizeof(List)}, list_kernel<S.experts>, state, rows);
  using GateUp = GateUpShared<Model>;
  launch_large(stream, {dim3(group_blocks), GateUp::warps * warp_threads, sizeof(GateUp)},
               gate_up_many_kernel<Model>, layer, state);
  launch_large(stream, {dim3(group_blocks), down_warps * warp_threads, sizeof(DownManyShared<Model>)},
               down_many_kernel<Model>, layer, state);
  using Combine = CombineShared<Model>;
  launch_large(stream, {dim3(S.hidden / tile_rows), Combine::warps * warp_threads, sizeof(Combine)},
               combine_many_kernel<Model>, layer, state, rows);
}

template void many_experts<Qwen36>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void many_experts<Demo>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);

}  // namespace calla::cuda
