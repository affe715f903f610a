// Gated DeltaNet of decode: one token of each row.
//
//   q, k, v = silu(causal convolution over 4 tokens), q and k divided by their length, q / sqrt(128)
//   S = decay S + k (beta (v - (decay S)' k))',  o = S' q,  decay = exp(-exp(A_log) softplus(a + dt_bias)),
//   beta = sigmoid(b);  with both products taken of the old state:  o = decay S'q + (k.q) u.
//   mixed = gain silu(z) o, which lacks the factor 1 / rms(o): the sums of o^2 go to `squares`.
// Shapes: state [head][128 of v][128 of k] float; a block has 32 columns (of v) of a head, a warp four, a
// thread four elements of each. All float32. Bytes moved: the state, read and written once: 4.2 MB a layer
// and row. Bound by them; the state is read before the predecessor ends.
#include <cuda_runtime.h>

#include "cuda/decode.h"
#include "cuda/launch.h"
#include "cuda/linear.cuh"

namespace calla::cuda {
namespace {

constexpr int head_dim = Shape::delta_head_dim;
constexpr int taps = Shape::convolution_taps;
constexpr int threads = 256;
constexpr int warps = threads / warp_threads;
constexpr int columns_of_warp = 4;
constexpr int columns_of_block = warps * columns_of_warp;
constexpr int lanes_of_column = warp_threads / columns_of_warp;
constexpr int parts = head_dim / columns_of_block;
static_assert(columns_of_warp == 4);
static_assert(parts == delta_squares);

template <Shape S>
struct Offsets {
  static constexpr int key = S.delta_key_dim();
  static constexpr int value = 2 * S.delta_key_dim();
  static constexpr int z = S.convolution_channels();
  static constexpr int a = z + S.delta_value_dim();
  static constexpr int b = a + S.delta_value_heads;
  static constexpr int columns = b + S.delta_value_heads;
};

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
    earlier = w.x * row(3) + w.y * row(2) + w.z * row(1);
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

/// Of eight values of every lane the warp's sums: lanes 4 i .. 4 i + 3 get that of value i. Each step halves
/// the values that a lane still has, so there are nine exchanges and not forty.
__device__ float sum_of_own(const float (&values)[8]) {
  const int lane = lane_id();
  float four[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool upper = (lane & 16) != 0;
    four[i] = (upper ? values[i + 4] : values[i]) +
              __shfl_xor_sync(0xFFFFFFFFU, upper ? values[i] : values[i + 4], 16);
  }
  float two[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool upper = (lane & 8) != 0;
    two[i] = (upper ? four[i + 2] : four[i]) + __shfl_xor_sync(0xFFFFFFFFU, upper ? four[i] : four[i + 2], 8);
  }
  const bool upper = (lane & 4) != 0;
  float one = (upper ? two[1] : two[0]) + __shfl_xor_sync(0xFFFFFFFFU, upper ? two[0] : two[1], 4);
  one += __shfl_xor_sync(0xFFFFFFFFU, one, 2);
  one += __shfl_xor_sync(0xFFFFFFFFU, one, 1);
  return one;
}

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
  float* const recurrent = state.recurrent[slot] + delta_layer * recurrent_elements<S>() +
                           (static_cast<std::size_t>(head) * head_dim + part * columns_of_block) * head_dim;
  float4 s[columns_of_warp];
#pragma unroll
  for (int c = 0; c < columns_of_warp; ++c)
    s[c] = reinterpret_cast<const float4*>(recurrent + (warp * columns_of_warp + c) * head_dim)[lane];

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
  const float squared = sum_of_warp(mine * mine);
  if (lane == 0) lengths[warp] = squared;
  if (thread < columns_of_block) values[thread] = value_channel(value_input, active);
  __syncthreads();
  constexpr int half = warps / 2;
  const float* const length = lengths + (is_key ? half : 0);
  float inverse = rsqrtf(length[0] + length[1] + length[2] + length[3] + 1e-6F);
  if (!is_key) inverse *= 0.08838834764831845F;  // 1 / sqrt(128)
  (is_key ? keys : queries)[dim] = mine * inverse;
  __syncthreads();

  const float4 k = reinterpret_cast<const float4*>(keys)[lane];
  const float4 q = reinterpret_cast<const float4*>(queries)[lane];
  const float beta = sigmoid(b);
  const float decay = expf(-rate * softplus(a + bias));
  const float kq = sum_of_warp(k.x * q.x + k.y * q.y + k.z * q.z + k.w * q.w);
  float products[2 * columns_of_warp];  // S'k and S'q of each column
#pragma unroll
  for (int c = 0; c < columns_of_warp; ++c) {
    products[2 * c] = s[c].x * k.x + s[c].y * k.y + s[c].z * k.z + s[c].w * k.w;
    products[2 * c + 1] = s[c].x * q.x + s[c].y * q.y + s[c].z * q.z + s[c].w * q.w;
  }
  const float product = sum_of_own(products);
  const float partner = __shfl_xor_sync(0xFFFFFFFFU, product, lanes_of_column / 2);
  const bool has_key = lane % lanes_of_column < lanes_of_column / 2;
  const float sk = has_key ? product : partner;
  const float sq = has_key ? partner : product;
  const float own_u = beta * (values[warp * columns_of_warp + own] - decay * sk);
  const float o = decay * sq + kq * own_u;
  if (lane % lanes_of_column == 0)
    state.mixed[static_cast<std::size_t>(row) * S.delta_value_dim() + head * head_dim + own_column] =
        o * gain * silu(z);
#pragma unroll
  for (int c = 0; c < columns_of_warp; ++c) {
    const float u = __shfl_sync(0xFFFFFFFFU, own_u, c * lanes_of_column);
    s[c] = {decay * s[c].x + k.x * u, decay * s[c].y + k.y * u, decay * s[c].z + k.z * u,
            decay * s[c].w + k.w * u};
    if (active) reinterpret_cast<float4*>(recurrent + (warp * columns_of_warp + c) * head_dim)[lane] = s[c];
  }
  float sum_of_squares = o * o;
#pragma unroll
  for (int distance = lanes_of_column; distance < warp_threads; distance *= 2)
    sum_of_squares += __shfl_xor_sync(0xFFFFFFFFU, sum_of_squares, distance);
  if (lane == 0) squares[warp] = sum_of_squares;
  __syncthreads();
  if (thread == 0)
    state.squares[(row * S.delta_value_heads + head) * parts + part] = sum_partials<warps>(squares, 1);
}

}  // namespace

template <class Model>
void decode_delta(cudaStream_t stream, const DeviceLayer& layer, int delta_layer, const DecodeState& state,
                  int rows) {
  launch_large(stream,
               {dim3(parts, Model::shape.delta_value_heads, static_cast<unsigned>(rows)), threads,
                rows == 1 ? spread(0, SmShare::less) : 0},
               delta_kernel<Model>, layer, state, delta_layer);
}

template void decode_delta<Qwen36>(cudaStream_t, const DeviceLayer&, int, const DecodeState&, int);
template void decode_delta<Demo>(cudaStream_t, const DeviceLayer&, int, const DecodeState&, int);

}  // namespace calla::cuda
