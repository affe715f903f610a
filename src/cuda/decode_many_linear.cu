// The projections of decode for more than four rows: into the mixers, out of them, and the head.
//
// Formulas, shapes and rounding: decode_linear.cu. Bytes moved: the weights, once (into the mixers, head) or
// once for eight rows (out of them, where a block takes two tiles instead: a block reads all activations of
// its rows, which are as many bytes as seven tiles). Bound by the weights' bytes, tensor cores being busy for
// nearly as long with sixteen rows.
#include <algorithm>
#include <type_traits>

#include "cuda/decode_many.cuh"
#include "cuda/decode_many.h"
#include "cuda/launch.h"

namespace calla::cuda {
namespace {

template <class L, bool Head>
__global__ __launch_bounds__(L::threads, 1) void project_many_kernel(Tiles w, const float* gain,
                                                                     const float* x, float* out, int columns,
                                                                     const int* slots, const int* active,
                                                                     int rows) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  const auto blocks = static_cast<int>(gridDim.x);
  const auto block = static_cast<int>(blockIdx.x);
  const int tiles = w.rows / tile_rows;
  walk_many<L>(
      w.data, first_of_share(tiles, blocks, block), first_of_share(tiles, blocks, block + 1), shared, rows,
      [&](auto& activations) { fill_normed<L>(activations, shared, gain, x, rows); },
      [&](const ManyOutput& at, auto sum) {
        const int out_row = Head ? slots[at.row] : at.row;
        if (Head && (out_row < 0 || (active != nullptr && active[at.row] == 0))) return;
        out[static_cast<std::size_t>(out_row) * columns + at.tile * tile_rows + at.r] =
            sum(at.r) * shared.factors[at.row];
      });
}

constexpr int output_rows = 8;

/// A block has all tiles of L and eight rows: blockIdx.y tells which.
template <class L, int Heads>
__global__ __launch_bounds__(L::threads, 1) void output_many_kernel(Tiles w, const float* mixed,
                                                                    const float* squares, float* x,
                                                                    int hidden, int rows) {
  static_assert(L::stages == L::together);
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  const int first = static_cast<int>(blockIdx.x) * L::together;
  const int first_row = static_cast<int>(blockIdx.y) * L::rows;
  const int block_rows = min(L::rows, rows - first_row);
  const int column = warp_id() * warp_columns + lane_column();
  const auto place = [&](const ManyOutput& at) {
    return x + static_cast<std::size_t>(first_row + at.row) * hidden + at.tile * tile_rows + at.r;
  };
  constexpr int turns = (L::together * L::outputs + L::threads - 1) / L::threads;
  float residual[turns] = {};
  walk_many<L>(
      w.data, first, first + L::together, shared, block_rows,
      [&](auto& activations) {
        release_successor();
        wait_for_predecessor();
        visit_outputs<L>(first, first + L::together, block_rows,
                         [&](const ManyOutput& at) { residual[at.turn] = __ldcg(place(at)); });
        fill_operand(
            activations, shared.parts[warp_id()], block_rows,
            [&](int row, float(&values)[8]) {
              load_columns(mixed + static_cast<std::size_t>(first_row + row) * L::columns + column, values);
            },
            [&](int row, float(&values)[8]) {
              if constexpr (Heads > 0) {
                const float factor =
                    head_factor(squares, (first_row + row) * Heads + column / Shape::delta_head_dim);
#pragma unroll
                for (float& value : values) value = __fmul_rn(value, factor);
              }
            });
        __syncthreads();
      },
      [&](const ManyOutput& at, auto sum) { *place(at) = residual[at.turn] + sum(at.r); });
}

template <int K, int Heads>
void launch_output(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int hidden,
                   int rows) {
  const int tiles = layer.out.rows / tile_rows;
  const auto launch = [&](auto together) {
    using L = ManyLayout<K, output_rows, together(), together()>;
    launch_large(stream,
                 {dim3(static_cast<unsigned>(tiles / together()),
                       static_cast<unsigned>((rows + output_rows - 1) / output_rows)),
                  L::threads, sizeof(typename L::Shared)},
                 output_many_kernel<L, Heads>, layer.out, state.mixed, state.squares, state.x, hidden, rows);
  };
  if (rows <= output_rows) return launch(std::integral_constant<int, 1>());
  launch(std::integral_constant<int, 2>());
}

constexpr int stages = 6;
constexpr int together = 2;

// With this many blocks every SM of an H200 has one.
constexpr int walking_blocks = 132;

/// Calls launch(R as a constant) for a step of more than four rows.
template <class Launch>
void with_many_rows(int rows, Launch launch) {
  constexpr int half = most_rows / 2;
  if (rows <= half) return launch(std::integral_constant<int, half>());
  launch(std::integral_constant<int, most_rows>());
}

unsigned blocks_of(int tiles) { return static_cast<unsigned>(std::min(tiles, walking_blocks)); }

}  // namespace

template <class Model>
void many_project(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows) {
  with_many_rows(rows, [&](auto r) {
    using L = ManyLayout<Model::shape.hidden, r(), stages, together>;
    launch_large(stream, {dim3(blocks_of(layer.in.rows / tile_rows)), L::threads, sizeof(typename L::Shared)},
                 project_many_kernel<L, false>, layer.in, layer.input_norm, state.x, state.projected,
                 layer.in.rows, state.slots, state.active, rows);
  });
}

template <class Model>
void many_output(cudaStream_t stream, const DeviceLayer& layer, bool is_attention, const DecodeState& state,
                 int rows) {
  constexpr Shape S = Model::shape;
  static_assert(S.hidden % (2 * tile_rows) == 0);
  if (is_attention) {
    launch_output<S.attention_dim(), 0>(stream, layer, state, S.hidden, rows);
  } else {
    launch_output<S.delta_value_dim(), S.delta_value_heads>(stream, layer, state, S.hidden, rows);
  }
}

template <class Model>
void many_head(cudaStream_t stream, const DeviceWeights& weights, const DecodeState& state, int rows) {
  with_many_rows(rows, [&](auto r) {
    using L = ManyLayout<Model::shape.hidden, r(), stages, together>;
    launch_large(stream,
                 {dim3(blocks_of(weights.head.rows / tile_rows)), L::threads, sizeof(typename L::Shared)},
                 project_many_kernel<L, true>, weights.head, weights.norm, state.x, state.logits,
                 Model::shape.vocabulary, state.slots, state.active, rows);
  });
}

template void many_project<Qwen36>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void many_project<Demo>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void many_output<Qwen36>(cudaStream_t, const DeviceLayer&, bool, const DecodeState&, int);
template void many_output<Demo>(cudaStream_t, const DeviceLayer&, bool, const DecodeState&, int);
template void many_head<Qwen36>(cudaStream_t, const DeviceWeights&, const DecodeState&, int);
template void many_head<Demo>(cudaStream_t, const DeviceWeights&, const DecodeState&, int);

}  // namespace calla::cuda
