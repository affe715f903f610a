// Gated DeltaNet of decode for some tokens of one sequence: formulas and shapes in decode_delta.cuh.
//
// A block makes the keys, queries and values of all tokens side by side and then takes its part of the state
// through them, one after the other, in registers; a second kernel moves the newest inputs into the window,
// which blocks of the first still read. A token has the bits that it has in a step of its own. Bytes moved:
// the state, read and written once: 4.2 MB a layer of the 35B. Bound by them, and by the way through the
// tokens: some hundred cycles each.
#include <algorithm>
#include <type_traits>

#include "cuda/decode_delta.cuh"
#include "cuda/decode_sequence.h"
#include "cuda/launch.h"

namespace calla::cuda {
namespace {

using namespace delta_step;

/// For up to R tokens.
template <class Model, int R>
__global__ __launch_bounds__(threads) void sequence_kernel(DeviceLayer layer, DecodeState state,
                                                           int delta_layer) {
  constexpr Shape S = Model::shape;
  using At = Offsets<S>;
  constexpr int channels = S.convolution_channels();
  static_assert(columns_of_block == warp_threads, "a lane has a value");
  const int part = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int key_head = head / (S.delta_value_heads / S.delta_key_heads);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = lane_id();
  const int warp = warp_id();

  __shared__ alignas(16) float keys[R][head_dim];
  __shared__ alignas(16) float queries[R][head_dim];
  __shared__ float values[R][columns_of_block];
  __shared__ float lengths[R][warps];
  __shared__ float squares[R][warps];
  __shared__ float key_queries[R];
  __shared__ float betas[R];
  __shared__ float decays[R];

  // What the rows are was settled long before the predecessor.
  const int slot = state.slots[0];
  const int count = state.behind[0] + 1;
  const int position = state.positions[slot] - count;  // of the first token
  float* const recurrent =
      state_of_block(state.recurrent[slot] + delta_layer * recurrent_elements<S>(), head, part);
  float4 s[columns_of_warp];
  load_state(s, recurrent);

  const float* const window = state.windows[slot] + delta_layer * window_elements<S>();
  const auto before = [&](int channel, int back) {
    return window[((position - back) & (taps - 1)) * channels + channel];
  };
  // Threads 0 .. 127 have a channel of q, the others one of k; a lane also has one of v.
  const bool is_key = thread >= head_dim;
  const int dim = thread % head_dim;
  const int channel = (is_key ? At::key : 0) + key_head * head_dim + dim;
  const int value = At::value + head * head_dim + part * columns_of_block + lane;
  const float4 channel_taps = reinterpret_cast<const float4*>(layer.convolution)[channel];
  const float4 value_taps = reinterpret_cast<const float4*>(layer.convolution)[value];
  float three = before(channel, 3);
  float two = before(channel, 2);
  float one = before(channel, 1);
  const float rate = expf(layer.a_log[head]);
  const float bias = layer.dt_bias[head];
  // After the products a lane has one of the warp's columns.
  const int own = lane / lanes_of_column;
  const int own_column = part * columns_of_block + warp * columns_of_warp + own;
  const float gain = layer.norm[own_column];

  release_successor();
  wait_for_predecessor();
  const auto projected = [&](int row, int column) {
    return state.projected[static_cast<std::size_t>(row) * At::columns + column];
  };
  float mine[R];
  float gates[R];
#pragma unroll
  for (int row = 0; row < R; ++row) {
    mine[row] = row < count ? projected(row, channel) : 0.0F;
    gates[row] = row < count ? projected(row, At::z + head * head_dim + own_column) : 0.0F;
  }
#pragma unroll
  for (int row = warp; row < R; row += warps) {
    if (row >= count) continue;
    const auto input = [&](int at) { return at >= 0 ? projected(at, value) : before(value, -at); };
    const float earlier = earlier_taps(value_taps, input(row - 3), input(row - 2), input(row - 1));
    values[row][lane] = silu(fmaf(value_taps.w, input(row), earlier));
  }
  if (thread < count) {
    betas[thread] = sigmoid(projected(thread, At::b + head));
    decays[thread] = expf(-rate * softplus(projected(thread, At::a + head) + bias));
  }
#pragma unroll
  for (int row = 0; row < R; ++row) {
    const float input = mine[row];
    mine[row] = silu(fmaf(channel_taps.w, input, earlier_taps(channel_taps, three, two, one)));
    three = two;
    two = one;
    one = input;
    const float squared = sum_of_warp(__fmul_rn(mine[row], mine[row]));
    if (lane == 0) lengths[row][warp] = squared;
  }
  __syncthreads();
#pragma unroll
  for (int row = 0; row < R; ++row) {
    const float inverse = inverse_length(sum_of_half(lengths[row] + (is_key ? warps / 2 : 0)), is_key);
    (is_key ? keys : queries)[row][dim] = mine[row] * inverse;
  }
  __syncthreads();
  for (int row = warp; row < count; row += warps) {
    const float kq = sum_of_warp(dot(reinterpret_cast<const float4*>(keys[row])[lane],
                                     reinterpret_cast<const float4*>(queries[row])[lane]));
    if (lane == 0) key_queries[row] = kq;
  }
  __syncthreads();

#pragma unroll
  for (int row = 0; row < R; ++row) {
    if (row >= count) break;
    const float4 k = reinterpret_cast<const float4*>(keys[row])[lane];
    const float4 q = reinterpret_cast<const float4*>(queries[row])[lane];
    const Output output = output_of(s, k, q, key_queries[row], values[row][warp * columns_of_warp + own],
                                    betas[row], decays[row]);
    if (lane % lanes_of_column == 0)
      state.mixed[static_cast<std::size_t>(row) * S.delta_value_dim() + head * head_dim + own_column] =
          output.o * gain * silu(gates[row]);
    advance(s, k, output.u, decays[row]);
    const float sum_of_squares = squares_of_warp(output.o);
    if (lane == 0) squares[row][warp] = sum_of_squares;
  }
  store_state(s, recurrent);
  __syncthreads();
  if (thread < count)
    state.squares[(thread * S.delta_value_heads + head) * parts + part] =
        sum_partials<warps>(squares[thread], 1);
}

/// A thread has a channel.
template <class Model>
__global__ __launch_bounds__(threads) void window_kernel(DecodeState state, int delta_layer) {
  constexpr Shape S = Model::shape;
  constexpr int channels = S.convolution_channels();
  static_assert(channels % threads == 0);
  const int channel = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  const int slot = state.slots[0];
  const int count = state.behind[0] + 1;
  const int position = state.positions[slot] - count;
  release_successor();
  wait_for_predecessor();
  float* const window = state.windows[slot] + delta_layer * window_elements<S>() + channel;
#pragma unroll
  for (int back = taps; back > 0; --back) {
    const int row = count - back;
    if (row >= 0)
      window[((position + row) & (taps - 1)) * channels] =
          __ldcg(state.projected + static_cast<std::size_t>(row) * Offsets<S>::columns + channel);
  }
}

}  // namespace

template <class Model>
void sequence_delta(cudaStream_t stream, const DeviceLayer& layer, int delta_layer, const DecodeState& state,
                    int rows) {
  constexpr Shape S = Model::shape;
  const auto launch = [&](auto r) {
    launch_large(stream, {dim3(parts, S.delta_value_heads), threads}, sequence_kernel<Model, r()>, layer,
                 state, delta_layer);
  };
  if (rows <= few_rows) {
    launch(std::integral_constant<int, few_rows>());
  } else if (rows <= most_rows / 2) {
    launch(std::integral_constant<int, most_rows / 2>());
  } else {
    launch(std::integral_constant<int, most_rows>());
  }
  launch_large(stream, {dim3(S.convolution_channels() / threads), threads}, window_kernel<Model>, state,
               delta_layer);
}

template void sequence_delta<Qwen36>(cudaStream_t, const DeviceLayer&, int, const DecodeState&, int);
template void sequence_delta<Demo>(cudaStream_t, const DeviceLayer&, int, const DecodeState&, int);

}  // namespace calla::cuda
