// The projections of decode: into the mixers, out of them, and the head; for up to four rows.
//
//   in, head:  y = W norm(x) = 1 / rms(x) * W (gain x); the factor is applied to the sum, so that no block
//              waits for a norm.
//   out:       x += W y, y the mixer's output; DeltaNet's still lacks its norm, a factor a head.
// Shapes: W [rows, K] in tiles, K = 64 * (groups of a warp) * (warps). Rounding: linear.cuh.
// Bytes moved: the weights, once; a block reads all of x. Bound by the weights' bytes and, in the layers, by
// the way from the predecessor's last write to the successor's first: a block has all its weights in shared
// memory when its predecessor ends, if the memory was free to bring them.
#include <algorithm>

#include "cuda/decode.h"
#include "cuda/decode_many.h"
#include "cuda/decode_tiles.cuh"
#include "cuda/launch.h"

namespace calla::cuda {
namespace {

template <class L, int K>
__global__ __launch_bounds__(L::threads) void project_kernel(Tiles w, const float* gain, const float* x,
                                                             float* out, int rows) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  const TileRange tiles{w.data, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                        w.rows / tile_rows};
  const int column = L::part() * warp_columns + lane_column();
  release_successor();
  shared.staged.prepare(threadIdx.x == 0);
  start_tiles<L>(tiles, shared);
  NormedColumns<L::rows> normed(gain, column);
  __syncthreads();
  wait_for_predecessor();
  if (L::team() == 0) fill_normed<K>(shared.parts[L::part()], normed, x, column, rows);
  multiply_tiles<L, tile_rows>(
      tiles, shared, rows, [&] { normed.store(shared.squares[L::part()]); },
      [&](int tile, int r, int row, auto sum) {
        out[static_cast<std::size_t>(row) * w.rows + tile * tile_rows + r] =
            sum(r) * inverse_rms<L::warps, K, L::rows>(shared.squares, row);
      });
}

template <class L, int K>
__global__ __launch_bounds__(L::threads) void head_kernel(Tiles w, const float* gain, const float* x,
                                                          float* logits, int vocabulary, const int* slots,
                                                          const int* active, int rows) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  const TileRange tiles{w.data, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                        w.rows / tile_rows};
  walk_tiles<L, tile_rows>(
      tiles, shared, rows,
      [&](auto& part, int warp) {
        const int column = warp * warp_columns + lane_column();
        NormedColumns<L::rows> normed(gain, column);
        release_successor();
        wait_for_predecessor();
        fill_normed<K>(part, normed, x, column, rows);
        normed.store(shared.squares[warp]);
      },
      [&](int tile, int r, int row, auto sum) {
        const int slot = slots[row];
        if (slot < 0 || (active != nullptr && active[row] == 0)) return;
        logits[static_cast<std::size_t>(slot) * vocabulary + tile * tile_rows + r] =
            sum(r) * inverse_rms<L::warps, K, L::rows>(shared.squares, row);
      });
}

template <int K, int R, int Heads>
__global__ __launch_bounds__(Layout<K, R, 1>::threads,
                             R == 1 ? 2 : 1) void output_kernel(Tiles w, const float* mixed,
                                                                const float* squares, float* x, int hidden,
                                                                int rows) {
  using L = Layout<K, R, 1>;
  static_assert(L::threads >= tile_rows * R, "a thread has one output");
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  const int tile = static_cast<int>(blockIdx.x);
  const TileRange tiles{w.data, tile, 1, tile + 1};
  const int thread = static_cast<int>(threadIdx.x);
  float* const mine =
      x + static_cast<std::size_t>(thread / tile_rows) * hidden + tile * tile_rows + thread % tile_rows;
  const int column = warp_id() * warp_columns + lane_column();
  release_successor();
  shared.staged.prepare(thread == 0);
  start_tiles<L>(tiles, shared);
  __syncthreads();
  wait_for_predecessor();
  float residual = 0;
  if (thread < tile_rows * rows) residual = __ldcg(mine);
  shared.parts[warp_id()].fill(rows, [&](int row, float(&values)[8]) {
    load_columns(mixed + static_cast<std::size_t>(row) * K + column, values);
    if constexpr (Heads > 0) {
      const float factor = head_factor(squares, row * Heads + column / Shape::delta_head_dim);
#pragma unroll
      for (float& value : values) value = __fmul_rn(value, factor);
    }
  });
  multiply_tiles<L, tile_rows>(
      tiles, shared, rows, [] {}, [&](int, int r, int, auto sum) { *mine = residual + sum(r); });
}

// With these many blocks every SM of an H200 has one or two, which leaves half of it to the successor's
// preparations.
constexpr int layer_blocks = 132;
constexpr int head_blocks = 264;

/// Blocks of L for all tiles of a matrix, each with at most as many as are on their way at once.
template <class L>
dim3 blocks_with_all(int tiles, int most) {
  return dim3(static_cast<unsigned>(std::max(std::min(tiles, most), (tiles + L::tiles - 1) / L::tiles)));
}

/// Calls launch(layout) with the first layout if a block gets as much shared memory, else with the second.
template <class Roomy, class Small, class Launch>
void with_room(const DecodeState& state, Launch launch) {
  if (state.block_memory >= Roomy::shared_bytes) return launch(Roomy());
  launch(Small());
}

}  // namespace

template <class Model>
void decode_project(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows) {
  if (go_together(state, rows)) return many_project<Model>(stream, layer, state, rows);
  constexpr int K = Model::shape.hidden;
  in_turns(rows, [&](int first, int count) {
    with_rows(count, [&](auto r) {
      with_room<Layout<K, r(), 3, 2>, Layout<K, r(), 2, 1>>(state, [&](auto layout) {
        using L = decltype(layout);
        launch_large(
            stream,
            {blocks_with_all<L>(layer.in.rows / tile_rows, layer_blocks), L::threads, L::shared_bytes},
            project_kernel<L, K>, layer.in, layer.input_norm, state.x + static_cast<std::size_t>(first) * K,
            state.projected + static_cast<std::size_t>(first) * layer.in.rows, count);
      });
    });
  });
}

namespace {

template <int K, int Heads>
void launch_output(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int hidden,
                   int rows) {
  in_turns(rows, [&](int first, int count) {
    with_rows(count, [&](auto r) {
      using L = Layout<K, r(), 1>;
      launch_large(stream,
                   {dim3(static_cast<unsigned>(layer.out.rows / tile_rows)), L::threads,
                    spread(L::shared_bytes, SmShare::more)},
                   output_kernel<K, r(), Heads>, layer.out, state.mixed + static_cast<std::size_t>(first) * K,
                   state.squares + static_cast<std::size_t>(first) * Heads * delta_squares,
                   state.x + static_cast<std::size_t>(first) * hidden, hidden, count);
    });
  });
}

}  // namespace

template <class Model>
void decode_output(cudaStream_t stream, const DeviceLayer& layer, bool is_attention, const DecodeState& state,
                   int rows) {
  if (go_together(state, rows)) return many_output<Model>(stream, layer, is_attention, state, rows);
  constexpr Shape S = Model::shape;
  if (is_attention) {
    launch_output<S.attention_dim(), 0>(stream, layer, state, S.hidden, rows);
  } else {
    launch_output<S.delta_value_dim(), S.delta_value_heads>(stream, layer, state, S.hidden, rows);
  }
}

template <class Model>
void decode_head(cudaStream_t stream, const DeviceWeights& weights, const DecodeState& state, int rows) {
  if (go_together(state, rows)) return many_head<Model>(stream, weights, state, rows);
  constexpr int K = Model::shape.hidden;
  in_turns(rows, [&](int first, int count) {
    with_rows(count, [&](auto r) {
      with_room<Layout<K, r(), 4>, Layout<K, r(), 2>>(state, [&](auto layout) {
        using L = decltype(layout);
        launch_large(stream,
                     {dim3(static_cast<unsigned>(std::min(weights.head.rows / tile_rows, head_blocks))),
                      L::threads, L::shared_bytes},
                     head_kernel<L, K>, weights.head, weights.norm,
                     state.x + static_cast<std::size_t>(first) * K, state.logits, Model::shape.vocabulary,
                     state.slots + first, state.active == nullptr ? nullptr : state.active + first, count);
      });
    });
  });
}

template void decode_project<Qwen36>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void decode_project<Demo>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void decode_output<Qwen36>(cudaStream_t, const DeviceLayer&, bool, const DecodeState&, int);
template void decode_output<Demo>(cudaStream_t, const DeviceLayer&, bool, const DecodeState&, int);
template void decode_head<Qwen36>(cudaStream_t, const DeviceWeights&, const DecodeState&, int);
template void decode_head<Demo>(cudaStream_t, const DeviceWeights&, const DecodeState&, int);

}  // namespace calla::cuda
