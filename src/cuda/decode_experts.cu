// The experts of decode, for up to four rows.
//
//   h = norm(x);  logits = router h;  shares = softmax over the eight largest
//   x += sum of share_e down_e(silu(gate_e h) * up_e h) + sigmoid(logits[experts]) shared(h)
// Three kernels: the router with the shared expert's first half; the chosen experts' first halves; all second
// halves with their sum. Every block that needs the choice makes it anew from the logits (decode_choice.cuh):
// that is faster than to hand it over. The second halves read the logits, and with the choice their weights,
// before their predecessor ends: they come from the kernel before.
//
// Shapes: the router's codes of 8 bits are two planes of 4, each a row of tiles; a pair of rows of gate and
// up lies in one tile. Rounding: linear.cuh. Bytes moved in a layer of the 35B: 16.5 MB, once for each row.
// Bound by them and by the choice, before which the first halves' weights cannot be read.
#include <cuda_runtime.h>

#include "cuda/decode.h"
#include "cuda/decode_choice.cuh"
#include "cuda/decode_many.h"
#include "cuda/decode_tiles.cuh"
#include "cuda/launch.h"

namespace calla::cuda {
namespace {

/// Blocks 0 .. tiles of the shared expert have one each; the others have a row of router tiles.
template <class L, int K, int Experts>
__global__ __launch_bounds__(L::threads) void router_kernel(DeviceLayer layer, DecodeState state, int rows) {
  static_assert(L::tiles == router_planes);
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  const int shared_tiles = layer.shared_gate_up.rows / tile_rows;
  const int block = static_cast<int>(blockIdx.x);
  const bool is_router = block >= shared_tiles;
  const int router_tile = (block - shared_tiles) * router_planes;
  const TileRange tiles =
      is_router ? TileRange{layer.router_tiles.data, router_tile, 1, router_tile + router_planes}
                : TileRange{layer.shared_gate_up.data, block, 1, block + 1};
  const int column = L::part() * warp_columns + lane_column();
  shared.staged.prepare(threadIdx.x == 0);
  start_tiles<L>(tiles, shared);
  NormedColumns<L::rows> normed(layer.post_attention_norm, column);
  __syncthreads();
  wait_for_predecessor();
  release_successor();
  if (L::team() == 0) fill_normed<K>(shared.parts[L::part()], normed, state.x, column, rows);
  multiply_tiles<L, tile_rows>(
      tiles, shared, rows, [&] { normed.store(shared.squares[L::part()]); },
      [&](int tile, int r, int row, auto sum) {
        const float factor = inverse_rms<L::warps, K, L::rows>(shared.squares, row);
        if (is_router) {
          const int expert = (block - shared_tiles) * tile_rows + r;
          if (tile != router_tile || expert > Experts) return;
          const float high =
              sum_partials<L::warps>(&shared.partials[1][0][partial_index(r, row)], L::partial);
          state.router[row * (Experts + 1) + expert] = (sum(r) + high) * factor;
        } else {
          constexpr int channels = tile_rows / 2;  // of a tile
          if (r >= channels) return;
          state.shared[row * (shared_tiles * channels) + tile * channels + r] =
              silu(sum(r) * factor) * (sum(r + channels) * factor);
        }
      });
}

/// A block has some tiles of one of the eight experts of a row.
template <class L, int K, int Experts>
__global__ __launch_bounds__(L::threads) void gate_up_kernel(DeviceLayer layer, DecodeState state) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  [[maybe_unused]] __shared__ int chosen;
  const int choice = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z);
  const int column = L::part() * warp_columns + lane_column();
  const TileStack& stack = layer.expert_gate_up;
  NormedColumns<1> normed(layer.post_attention_norm, column);
  shared.staged.prepare(threadIdx.x == 0);
  __syncthreads();
  wait_for_predecessor();
  release_successor();

  TileRange tiles{stack.data, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                  stack.rows / tile_rows};
  const auto start = [&](int expert) {
    tiles.matrix = stack.data + static_cast<std::size_t>(expert) * tiled_bytes(stack.rows, K);
    start_tiles<L>(tiles, shared);
  };
  // One warp chooses; where it is enough to have the weights brought, the others do not wait for it.
  const float* const logits = state.router + row * (Experts + 1);
  if constexpr (bulk_copies) {
    if (warp_id() == 0) start(choose_one<Experts>(logits, choice));
  } else {
    if (warp_id() == 0) chosen = choose_one<Experts>(logits, choice);
    __syncthreads();
    start(chosen);
  }
  if (L::team() == 0) {
    fill_normed<K>(shared.parts[L::part()], normed, state.x + static_cast<std::size_t>(row) * K, column, 1);
    normed.store(shared.squares[L::part()]);
  }
  const int channels = stack.rows / 2;
  multiply_tiles<L, tile_rows / 2>(
      tiles, shared, 1, [] {},
      [&](int tile, int channel, int, auto sum) {
        const float factor = inverse_rms<L::warps, K, 1>(shared.squares, 0);
        state.inner[(row * top + choice) * channels + tile * (tile_rows / 2) + channel] =
            silu(sum(channel) * factor) * (sum(channel + tile_rows / 2) * factor);
      });
}

/// A warp's part of a tile of one down projection, times the expert's share.
template <int K>
struct DownPart {
  using P = DownParts<K>;
  StagedTiles<1, 1, P::groups_of_part> weights;
  Activations<P::groups_of_part, 1> x;

  /// The warp's lanes meet before the product.
  __device__ void start(const std::byte* matrix, int tile, int part) {
    const bool leader = lane_id() == 0;
    weights.prepare(leader);
    weights.start(
        0, matrix + (static_cast<std::size_t>(tile) * P::groups + part * P::groups_of_part) * tile_bytes, 0,
        leader);
  }
  __device__ void multiply(const float* inner, int part, float share, float* partial) {
    x.fill(1, [&](int, float(&values)[8]) {
      load_columns(inner + (part * P::groups_of_part * tile_columns + lane_column()), values);
    });
    weights.wait(0);
    TileProduct<1> product;
    product.add(weights.parts[0][0], x);
    product.store(x, partial, share);
  }
};

template <class Model>
constexpr int down_warps() {
  return top * DownParts<Model::shape.expert_hidden>::warps +
         DownParts<Model::shape.shared_expert_hidden>::warps;
}

template <class Model>
struct DownShared {
  static constexpr int routed_warps = top * DownParts<Model::shape.expert_hidden>::warps;
  DownPart<Model::shape.expert_hidden> routed[routed_warps];
  DownPart<Model::shape.shared_expert_hidden> common[down_warps<Model>() - routed_warps];
  float partials[down_warps<Model>()][tile_rows];
  ChoiceShared choices;
};

/// A block has a tile of the sum over all experts of a row.
template <class Model>
__global__ __launch_bounds__(down_warps<Model>() * warp_threads, 2) void down_kernel(DeviceLayer layer,
                                                                                     DecodeState state) {
  constexpr Shape S = Model::shape;
  using Routed = DownParts<S.expert_hidden>;
  constexpr int routed_warps = top * Routed::warps;
  static_assert(down_warps<Model>() * warp_threads >= S.experts, "a thread looks at a logit");
  const int tile = static_cast<int>(blockIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  const int warp = warp_id();
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<DownShared<Model>*>(raw);

  release_successor();
  // Older than the predecessor: the residual stream, and the choice.
  float* const mine = state.x + static_cast<std::size_t>(row) * S.hidden + tile * tile_rows + threadIdx.x;
  const float residual = threadIdx.x < tile_rows ? __ldcg(mine) : 0.0F;
  const float* const logits = state.router + row * (S.experts + 1);
  const int thread = static_cast<int>(threadIdx.x);
  const Choice& chosen =
      choose<S.experts>(thread < S.experts ? __ldcg(logits + thread) : 0.0F, shared.choices);
  if (warp < routed_warps) {
    const int choice = warp / Routed::warps;
    const int part = warp % Routed::warps;
    shared.routed[warp].start(
        layer.expert_down.data + chosen.experts[choice] * tiled_bytes(S.hidden, S.expert_hidden), tile, part);
    const float share = share_of(chosen, choice);
    wait_for_predecessor();
    shared.routed[warp].multiply(state.inner + (row * top + choice) * S.expert_hidden, part, share,
                                 shared.partials[warp]);
  } else {
    const int part = warp - routed_warps;
    shared.common[part].start(layer.shared_down.data, tile, part);
    const float share = sigmoid(__ldcg(logits + S.experts));
    wait_for_predecessor();
    shared.common[part].multiply(state.shared + row * S.shared_expert_hidden, part, share,
                                 shared.partials[warp]);
  }
  __syncthreads();
  if (threadIdx.x < tile_rows)
    *mine = residual + sum_partials<down_warps<Model>()>(&shared.partials[0][threadIdx.x], tile_rows);
}

// Tiles of an expert that a block has, all on their way at once.
constexpr int expert_stages = 2;
constexpr int expert_teams = 2;

}  // namespace

namespace {

/// The array of a row on, `columns` each.
template <class T>
T* from_row(T* array, int row, int columns) {
  return array + static_cast<std::size_t>(row) * static_cast<std::size_t>(columns);
}

template <class Model>
void few_experts(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows) {
  constexpr Shape S = Model::shape;
  const auto count = static_cast<unsigned>(rows);
  with_rows(rows, [&](auto r) {
    using L = Layout<S.hidden, r(), 1, router_planes>;
    constexpr int router_blocks = tiles_of_rows(S.experts + 1);
    const int tiles = layer.shared_gate_up.rows / tile_rows;
    launch_large(stream,
                 {dim3(static_cast<unsigned>(tiles + router_blocks)), L::threads,
                  spread(L::shared_bytes, SmShare::less)},
                 router_kernel<L, S.hidden, S.experts>, layer, state, rows);
  });
  const auto shared = [&](std::size_t needed, SmShare share) {
    return rows == 1 ? spread(needed, share) : needed;
  };
  using L = Layout<S.hidden, 1, expert_stages, expert_teams>;
  constexpr unsigned blocks = (2 * S.expert_hidden / tile_rows + L::tiles - 1) / L::tiles;
  launch_large(stream, {dim3(blocks, top, count), L::threads, shared(L::shared_bytes, SmShare::more)},
               gate_up_kernel<L, S.hidden, S.experts>, layer, state);
  launch_large(stream,
               {dim3(S.hidden / tile_rows, count), down_warps<Model>() * warp_threads,
                shared(sizeof(DownShared<Model>), SmShare::less)},
               down_kernel<Model>, layer, state);
}

}  // namespace

template <class Model>
void decode_experts(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows) {
  if (go_together(state, rows)) return many_experts<Model>(stream, layer, state, rows);
  constexpr Shape S = Model::shape;
  in_turns(rows, [&](int first, int count) {
    DecodeState some = state;
    some.x = from_row(state.x, first, S.hidden);
    some.router = from_row(state.router, first, S.experts + 1);
    some.inner = from_row(state.inner, first, top * S.expert_hidden);
    some.shared = from_row(state.shared, first, S.shared_expert_hidden);
    few_experts<Model>(stream, layer, some, count);
  });
}

template void decode_experts<Qwen36>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void decode_experts<Demo>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);

}  // namespace calla::cuda
