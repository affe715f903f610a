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
#include "cuda/decode_tiles.cuh"
#include "cuda/launch.h"

namespace calla::cuda {
namespace {

template <int K, int NB, bool Head>
__global__ __launch_bounds__(Layout<K, NB>::threads,
                             NB == 1 ? 3 : 1) void project_kernel(Tiles w, const float* gain, const float* x,
                                                                  float* out, int columns, const int* slots,
                                                                  int rows) {
  using L = Layout<K, NB>;
  __shared__ float squares[L::warps][L::rows];
  walk_tiles<K, NB, tile_rows>(
      w, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), rows,
      [&](auto& activations, int part) {
        float mine[NB] = {};
        activations.load(part * groups_of_warp, rows, NormedRows{x, gain, K, mine});
        store_squares<NB>(mine, squares[part]);
      },
      [&](int tile, int r, int row, auto sum) {
        const int out_row = Head ? slots[row] : row;
        if (Head && out_row < 0) return;
        out[static_cast<std::size_t>(out_row) * columns + tile * tile_rows + r] =
            sum(r) * (inverse_rms<L::warps, K>(&squares[0][row], L::rows) / residual_scale);
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
  walk_tiles<K, NB, tile_rows>(
      w, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), rows,
      [&](auto& activations, int part) {
        activations.load(part * groups_of_warp, rows, MixedRows<Heads>{mixed, squares, K});
      },
      [&](int tile, int r, int row, auto sum) {
        x[static_cast<std::size_t>(row) * hidden + tile * tile_rows + r] += sum(r);
      });
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
