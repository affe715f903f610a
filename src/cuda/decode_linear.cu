// The projections of decode: into the mixers, out of them, and the head; for up to four rows.
//
//   in, head:  y = W norm(x) = 1 / rms(x) * W (gain x); the factor is applied to the sum, so that no block
//              waits for a norm. 1/256 keeps gain x in the range of half.
//   out:       x += W y, y the mixer's output; DeltaNet's still lacks its norm, a factor a head.
// Shapes: W [rows, K] in tiles, K = 64 * (groups of a warp) * (warps). Rounding: linear.cuh.
// Bytes moved: the weights, once; a block reads all of x. Bound by the weights' bytes and, in the layers, by
// the way from the predecessor's last write to the successor's first.
#include <algorithm>

#include "cuda/decode.h"
#include "cuda/decode_many.h"
#include "cuda/decode_tiles.cuh"
#include "cuda/launch.h"

namespace calla::cuda {
namespace {

/// Fills a warp's part of the activations with norm(x) but for its factor.
template <int K, int R>
__device__ void fill_normed(Activations<groups_of_warp, R>& part, NormedColumns<R>& normed, const float* x,
                            int column, int rows) {
  part.fill(rows, [&](int row, float(&values)[8]) {
    normed(x + static_cast<std::size_t>(row) * K + column, row, values);
  });
}

template <int K, int R, int Stages>
__global__ __launch_bounds__(Layout<K, R, Stages>::threads) void project_kernel(Tiles w, const float* gain,
                                                                                const float* x, float* out,
                                                                                int rows) {
  using L = Layout<K, R, Stages>;
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  const TileRange tiles{w.data, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                        w.rows / tile_rows};
  const int warp = warp_id();
  const int column = warp * warp_columns + lane_column();
  release_successor();
  shared.staged.prepare(threadIdx.x == 0);
  start_tiles<L>(tiles, shared);
  NormedColumns<R> normed(gain, column);
  __syncthreads();
  wait_for_predecessor();
  fill_normed<K>(shared.parts[warp], normed, x, column, rows);
  multiply_tiles<L, tile_rows>(
      tiles, shared, rows, [&] { normed.store(shared.squares[warp]); },
      [&](int tile, int r, int row, auto sum) {
        out[static_cast<std::size_t>(row) * w.rows + tile * tile_rows + r] =
            sum(r) * inverse_rms<L::warps, K, R>(shared.squares, row);
      });
}

template <int K, int R, int Stages>
__global__ __launch_bounds__(Layout<K, R, Stages>::threads) void head_kernel(Tiles w, const float* gain,
                                                                             const float* x, float* logits,
                                                                             int vocabulary, const int* slots,
                                                                             int rows) {
  using L = Layout<K, R, Stages>;
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  const TileRange tiles{w.data, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                        w.rows / tile_rows};
  walk_tiles<L, tile_rows>(
      tiles, shared, rows,
      [&](auto& part, int warp) {
        const int column = warp * warp_columns + lane_column();
        NormedColumns<R> normed(gain, column);
        release_successor();
        wait_for_predecessor();
        fill_normed<K>(part, normed, x, column, rows);
        normed.store(shared.squares[warp]);
      },
      [&](int tile, int r, int row, auto sum) {
        const int slot = slots[row];
        if (slot < 0) return;
        logits[static_cast<std::size_t>(slot) * vocabulary + tile * tile_rows + r] =
            sum(r) * inverse_rms<L::warps, K, R>(shared.squares, row);
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
// Tiles on their way: all that a block has, in the layers.
constexpr int layer_stages = 6;
constexpr int head_stages = 4;

unsigned blocks_of(int tiles, int most) { return static_cast<unsigned>(std::min(tiles, most)); }

}  // namespace

template <class Model>
void decode_project(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows) {
  if (rows > few_rows) return many_project<Model>(stream, layer, state, rows);
  constexpr Shape S = Model::shape;
  constexpr int K = S.hidden;
  static_assert(projected_columns<S>() <= layer_stages * layer_blocks * tile_rows);
  with_rows(rows, [&](auto r) {
    using L = Layout<K, r(), layer_stages>;
    launch_large(
        stream, {dim3(blocks_of(layer.in.rows / tile_rows, layer_blocks)), L::threads, L::shared_bytes},
        project_kernel<K, r(), layer_stages>, layer.in, layer.input_norm, state.x, state.projected, rows);
  });
}

template <class Model>
void decode_output(cudaStream_t stream, const DeviceLayer& layer, bool is_attention, const DecodeState& state,
                   int rows) {
  if (rows > few_rows) return many_output<Model>(stream, layer, is_attention, state, rows);
  constexpr Shape S = Model::shape;
  with_rows(rows, [&](auto r) {
    const dim3 blocks(static_cast<unsigned>(layer.out.rows / tile_rows));
    if (is_attention) {
      using L = Layout<S.attention_dim(), r(), 1>;
      launch_large(stream, {blocks, L::threads, spread(L::shared_bytes)},
                   output_kernel<S.attention_dim(), r(), 0>, layer.out, state.mixed, state.squares, state.x,
                   S.hidden, rows);
    } else {
      using L = Layout<S.delta_value_dim(), r(), 1>;
      launch_large(stream, {blocks, L::threads, spread(L::shared_bytes)},
                   output_kernel<S.delta_value_dim(), r(), S.delta_value_heads>, layer.out, state.mixed,
                   state.squares, state.x, S.hidden, rows);
    }
  });
}

template <class Model>
void decode_head(cudaStream_t stream, const DeviceWeights& weights, const DecodeState& state, int rows) {
  if (rows > few_rows) return many_head<Model>(stream, weights, state, rows);
  constexpr Shape S = Model::shape;
  with_rows(rows, [&](auto r) {
    using L = Layout<S.hidden, r(), head_stages>;
    launch_large(stream,
                 {dim3(blocks_of(weights.head.rows / tile_rows, head_blocks)), L::threads, L::shared_bytes},
                 head_kernel<S.hidden, r(), head_stages>, weights.head, weights.norm, state.x, state.logits,
                 S.vocabulary, state.slots, rows);
  });
}

template void decode_project<Qwen36>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void decode_project<Demo>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void decode_output<Qwen36>(cudaStream_t, const DeviceLayer&, bool, const DecodeState&, int);
template void decode_output<Demo>(cudaStream_t, const DeviceLayer&, bool, const DecodeState&, int);
template void decode_head<Qwen36>(cudaStream_t, const DeviceWeights&, const DecodeState&, int);
template void decode_head<Demo>(cudaStream_t, const DeviceWeights&, const DecodeState&, int);

}  // namespace calla::cuda
