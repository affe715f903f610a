// The projections of decode: into the mixers, out of them, and the head.
//
//   in, head:  y = W norm(x) = 1 / rms(x) * W (gain x); the factor is applied to the sum, so that no block
//              waits for a norm. 1/256 keeps gain x in the range of half.
//   out:       x += W y, y the mixer's output; DeltaNet's still lacks its norm, a factor a head.
// Shapes: W [rows, K] in tiles, K = 64 * (groups of a warp) * (warps). Rounding: linear.cuh.
// Bytes moved: the weights, once; a block reads all of x. Bound by the weights' bytes and, in the layers, by
// the way from the predecessor's last write to the successor's first.
#include <algorithm>

#include "cuda/decode.h"
#include "cuda/launch.h"
#include "cuda/linear.cuh"

namespace calla::cuda {
namespace {

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

/// A block walks over tiles, a grid apart; `finish(row of W, row of x, sum)` takes the sums.
template <int K, int NB, class Load, class Finish>
__device__ void walk_tiles(const Tiles& w, int rows, Load load, Finish finish) {
  using L = Layout<K, NB>;
  __shared__ float partials[2][L::warps][L::partial];
  const int part = warp_id();
  const int tiles = w.rows / tile_rows;
  const int step = static_cast<int>(gridDim.x);
  constexpr std::size_t row_bytes = static_cast<std::size_t>(K / tile_columns) * tile_bytes;
  const std::byte* const mine = w.data + part * groups_of_warp * tile_bytes;

  int tile = static_cast<int>(blockIdx.x);
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
    for (int i = static_cast<int>(threadIdx.x); i < L::partial; i += L::threads) {
      // Neighbouring threads take neighbouring rows of W.
      const int row = i / tile_rows;
      const int r = i % tile_rows;
      if (row < rows)
        finish(tile * tile_rows + r, row, sum_partials<L::warps>(&partial[0][r * L::rows + row], L::partial));
    }
  }
}

template <int K, int NB, bool Head>
__global__ __launch_bounds__(Layout<K, NB>::threads,
                             NB == 1 ? 3 : 1) void project_kernel(Tiles w, const float* gain, const float* x,
                                                                  float* out, int columns, const int* slots,
                                                                  int rows) {
  using L = Layout<K, NB>;
  __shared__ float squares[L::warps][L::rows];
  walk_tiles<K, NB>(
      w, rows,
      [&](auto& activations, int part) {
        float mine[NB] = {};
        activations.load(part * groups_of_warp, rows, NormedRows{x, gain, K, mine});
        store_squares<NB>(mine, squares[part]);
      },
      [&](int r, int row, float sum) {
        if (r >= columns) return;
        const int out_row = Head ? slots[row] : row;
        if (Head && out_row < 0) return;
        out[static_cast<std::size_t>(out_row) * columns + r] =
            sum * (inverse_rms<L::warps, K>(&squares[0][row], L::rows) / residual_scale);
      });
}

/// The mixer's output; DeltaNet's times 1 / rms of its head.
template <int Heads>
struct MixedRows {
  const float* mixed;
  const float* squares;  // [rows][heads][4]; unused where Heads is 0
  int columns;

  __device__ float2 operator()(int row, int k) const {
    float2 value = *reinterpret_cast<const float2*>(mixed + row * columns + k);
    if constexpr (Heads > 0) {
      const float4 s = reinterpret_cast<const float4*>(squares)[row * Heads + k / Shape::delta_head_dim];
      const float factor = 1.0F / sqrtf((s.x + s.y + s.z + s.w) / Shape::delta_head_dim + rms_norm_epsilon);
      value.x *= factor;
      value.y *= factor;
    }
    return value;
  }
};

template <int K, int NB, int Heads>
__global__ __launch_bounds__(Layout<K, NB>::threads, 1) void output_kernel(Tiles w, const float* mixed,
                                                                           const float* squares, float* x,
                                                                           int hidden, int rows) {
  walk_tiles<K, NB>(
      w, rows,
      [&](auto& activations, int part) {
        activations.load(part * groups_of_warp, rows, MixedRows<Heads>{mixed, squares, K});
      },
      [&](int r, int row, float sum) { x[static_cast<std::size_t>(row) * hidden + r] += sum; });
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
unsigned blocks_for(int tiles, int row_blocks, int most_blocks) {
  return static_cast<unsigned>(row_blocks == 1 ? tiles : std::min(tiles, most_blocks));
}

constexpr int batch_blocks = 132;
constexpr int head_blocks = 396;

}  // namespace

template <class Model>
void decode_project(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows) {
  constexpr Shape S = Model::shape;
  with_row_blocks(rows, [&](auto nb) {
    const int columns = layer.in.rows;
    launch_chained(
        stream,
        {dim3(blocks_for(layer.in.rows / tile_rows, nb(), batch_blocks)), Layout<S.hidden, nb()>::threads},
        project_kernel<S.hidden, nb(), false>, layer.in, layer.input_norm, state.x, state.projected, columns,
        state.slots, rows);
  });
}

template <class Model>
void decode_output(cudaStream_t stream, const DeviceLayer& layer, bool is_attention, const DecodeState& state,
                   int rows) {
  constexpr Shape S = Model::shape;
  with_row_blocks(rows, [&](auto nb) {
    const dim3 blocks(static_cast<unsigned>(layer.out.rows / tile_rows));
    if (is_attention) {
      launch_chained(stream, {blocks, Layout<S.attention_dim(), nb()>::threads},
                     output_kernel<S.attention_dim(), nb(), 0>, layer.out, state.mixed, state.squares,
                     state.x, S.hidden, rows);
    } else {
      launch_chained(stream, {blocks, Layout<S.delta_value_dim(), nb()>::threads},
                     output_kernel<S.delta_value_dim(), nb(), S.delta_value_heads>, layer.out, state.mixed,
                     state.squares, state.x, S.hidden, rows);
    }
  });
}

template <class Model>
void decode_head(cudaStream_t stream, const DeviceWeights& weights, const DecodeState& state, int rows) {
  constexpr Shape S = Model::shape;
  with_row_blocks(rows, [&](auto nb) {
    const int tiles = weights.head.rows / tile_rows;
    launch_chained(
        stream, {dim3(static_cast<unsigned>(std::min(tiles, head_blocks))), Layout<S.hidden, nb()>::threads},
        project_kernel<S.hidden, nb(), true>, weights.head, weights.norm, state.x, state.logits, S.vocabulary,
        state.slots, rows);
  });
}

template void decode_project<Qwen36>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void decode_project<Demo>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void decode_output<Qwen36>(cudaStream_t, const DeviceLayer&, bool, const DecodeState&, int);
template void decode_output<Demo>(cudaStream_t, const DeviceLayer&, bool, const DecodeState&, int);
template void decode_head<Qwen36>(cudaStream_t, const DeviceWeights&, const DecodeState&, int);
template void decode_head<Demo>(cudaStream_t, const DeviceWeights&, const DecodeState&, int);

}  // namespace calla::cuda
