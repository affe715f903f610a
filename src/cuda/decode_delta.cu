// Gated DeltaNet of decode: one token of each row. Formulas and shapes: decode_delta.cuh.
// Bytes moved: the state, read and written once: 4.2 MB a layer and row. Bound by them; the state is read
// before the predecessor ends.
#include "cuda/decode.h"
#include "cuda/decode_delta.cuh"
#include "cuda/decode_sequence.h"
#include "cuda/launch.h"

namespace calla::cuda {
namespace {

using namespace delta_step;
static_assert(parts == delta_squares);

/// A thread's channel of the convolution. What came before the token is read before the predecessor ends.
struct Channel {
  float* window = nullptr;  // of the channel
  int channels = 0;
  int position = 0;
  float earlier = 0;  // the sum over the taps before the token
  float newest = 0;   // the token's tap

  __device__ Channel(const float* taps, float* all, int count, int channel, int at)
      : window(all + channel), channels(count), position(at) {
    const float4 w = reinterpret_cast<const float4*>(taps)[channel];
    earlier = earlier_taps(w, row(3), row(2), row(1));
    newest = w.w;
  }
  /// `keep`: the input joins the window.
  __device__ float operator()(float input, bool keep) const {
    if (keep) window[(position & (taps - 1)) * channels] = input;
    return silu(fmaf(newest, input, earlier));
  }

 private:
  __device__ float row(int back) const { return window[((position - back) & (taps - 1)) * channels]; }
};

template <class Model>
__global__ __launch_bounds__(threads, 5) void delta_kernel(DeviceLayer layer, DecodeState state,
                                                           int delta_layer) {
  constexpr Shape S = Model::shape;
  using At = Offsets<S>;
  constexpr int values_per_key = S.delta_value_heads / S.delta_key_heads;
  constexpr int channels = S.convolution_channels();
  const int part = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z);
  const int key_head = head / values_per_key;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = lane_id();
  const int warp = warp_id();

  __shared__ alignas(16) float keys[head_dim];
  __shared__ alignas(16) float queries[head_dim];
  __shared__ float values[columns_of_block];
  __shared__ float lengths[warps];
  __shared__ float squares[warps];

  // Which slot a row is changes between steps only.
  const int slot = state.slots[row];
  if (slot < 0) {
    release_successor();
    wait_for_predecessor();
    return;
  }
  float* const recurrent =
      state_of_block(state.recurrent[slot] + delta_layer * recurrent_elements<S>(), head, part);
  float4 s[columns_of_warp];
  load_state(s, recurrent);

  const bool active = state.active[row] != 0;
  const int position = state.positions[slot] - 1;
  float* const window = state.windows[slot] + delta_layer * window_elements<S>();
  // Threads 0 .. 127 have a channel of q, the others one of k; a warp then also has some of v.
  const bool is_key = thread >= head_dim;
  const int dim = thread % head_dim;
  const int channel = (is_key ? At::key : 0) + key_head * head_dim + dim;
  const int value = At::value + head * head_dim + part * columns_of_block + thread % columns_of_block;
  const Channel key_channel(layer.convolution, window, channels, channel, position);
  const Channel value_channel(layer.convolution, window, channels, value, position);
  const float rate = expf(layer.a_log[head]);
  const float bias = layer.dt_bias[head];
  // After the products a lane has one of the warp's columns.
  const int own = lane / lanes_of_column;
  const int own_column = part * columns_of_block + warp * columns_of_warp + own;
  const float gain = layer.norm[own_column];

  release_successor();
  wait_for_predecessor();
  const float* const projected = state.projected + static_cast<std::size_t>(row) * At::columns;
  const float input = projected[channel];
  const float value_input = projected[value];
  const float a = projected[At::a + head];
  const float b = projected[At::b + head];
  const float z = projected[At::z + head * head_dim + own_column];

  const float mine = key_channel(input, active && part == 0 && head % values_per_key == 0);
  const float squared = sum_of_warp(__fmul_rn(mine, mine));
  if (lane == 0) lengths[warp] = squared;
  if (thread < columns_of_block) values[thread] = value_channel(value_input, active);
  __syncthreads();
  const float inverse = inverse_length(sum_of_half(lengths + (is_key ? warps / 2 : 0)), is_key);
  (is_key ? keys : queries)[dim] = mine * inverse;
  __syncthreads();

  const float4 k = reinterpret_cast<const float4*>(keys)[lane];
  const float4 q = reinterpret_cast<const float4*>(queries)[lane];
  const float beta = sigmoid(b);
  const float decay = expf(-rate * softplus(a + bias));
  const float kq = sum_of_warp(dot(k, q));
  const Output own_output = output_of(s, k, q, kq, values[warp * columns_of_warp + own], beta, decay);
  if (lane % lanes_of_column == 0)
    state.mixed[static_cast<std::size_t>(row) * S.delta_value_dim() + head * head_dim + own_column] =
        own_output.o * gain * silu(z);
  advance(s, k, own_output.u, decay);
  if (active) store_state(s, recurrent);
  const float sum_of_squares = squares_of_warp(own_output.o);
  if (lane == 0) squares[warp] = sum_of_squares;
  __syncthreads();
  if (thread == 0)
    state.squares[(row * S.delta_value_heads + head) * parts + part] = sum_partials<warps>(squares, 1);
}

}  // namespace

template <class Model>
void decode_delta(cudaStream_t stream, const DeviceLayer& layer, int delta_layer, const DecodeState& state,
                  int rows) {
  if (state.sequence) return sequence_delta<Model>(stream, layer, delta_layer, state, rows);
  launch_large(stream,
               {dim3(parts, Model::shape.delta_value_heads, static_cast<unsigned>(rows)), threads,
                rows == 1 ? spread(0, SmShare::less) : 0},
               delta_kernel<Model>, layer, state, delta_layer);
}

template void decode_delta<Qwen36>(cudaStream_t, const DeviceLayer&, int, const DecodeState&, int);
template void decode_delta<Demo>(cudaStream_t, const DeviceLayer&, int, const DecodeState&, int);

}  // namespace calla::cuda
