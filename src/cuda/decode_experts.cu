// The experts of decode.
//
//   h = norm(x);  logits = router h;  shares = softmax over the eight largest
//   x += sum of share_e down_e(silu(gate_e h) * up_e h) + sigmoid(logits[experts]) shared(h)
// Three kernels: the router with the shared expert's first half; the chosen experts' first halves; all second
// halves with their sum. Every warp that needs the choice makes it anew from the logits: that is faster than
// another kernel. The second halves read the choice, and with it their weights, before their predecessor
// ends: the logits come from the kernel before it. Shapes: router [experts + 1][hidden] of 8 bits; a pair of
// rows of gate and up lies in one tile. Rounding: linear.cuh; the router in float32. Bytes moved in a layer
// of the 35B: 16.5 MB, each once for each row. Bound by them and by the choice, before which the first
// halves' weights cannot be read.
#include <cuda_runtime.h>

#include "cuda/decode.h"
#include "cuda/decode_tiles.cuh"
#include "cuda/launch.h"

namespace calla::cuda {
namespace {

constexpr int top = Shape::experts_per_token;
constexpr float inner_scale = 1.0F / 64.0F;  // keeps the inner activations in the range of half

/// The chosen experts, largest logit first, the lower id first among equals.
struct Choice {
  int experts[top];
  float shares[top];
};

/// Of a row's logits, by a whole warp.
template <int Experts>
__device__ Choice choose(const float* logits) {
  constexpr int mine = Experts / warp_threads;
  const int lane = lane_id();
  unsigned keys[mine];  // ordered as the logits are
#pragma unroll
  for (int i = 0; i < mine; ++i) {
    const unsigned bits = __float_as_uint(__ldcg(logits + lane * mine + i));
    keys[i] = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  }
  Choice choice;
  float values[top];
#pragma unroll
  for (int n = 0; n < top; ++n) {
    unsigned highest = 0;
#pragma unroll
    for (int i = 0; i < mine; ++i) highest = max(highest, keys[i]);
    const unsigned winner = __reduce_max_sync(0xFFFFFFFFU, highest);
    const int lowest_lane = __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFU, highest == winner))) - 1;
    int index = 0;
#pragma unroll
    for (int i = mine - 1; i >= 0; --i) {
      if (keys[i] == winner) index = i;
    }
    index = __shfl_sync(0xFFFFFFFFU, index, lowest_lane);
#pragma unroll
    for (int i = 0; i < mine; ++i) {
      if (lane == lowest_lane && i == index) keys[i] = 0;
    }
    choice.experts[n] = lowest_lane * mine + index;
    values[n] = __uint_as_float((winner & 0x80000000U) != 0 ? winner & 0x7FFFFFFFU : ~winner);
  }
  float total = 0;
#pragma unroll
  for (int n = 0; n < top; ++n) total += choice.shares[n] = expf(values[n] - values[0]);
#pragma unroll
  for (float& share : choice.shares) share /= total;
  return choice;
}

/// A row of the router times the normed rows, by a warp; 512 columns at a time.
template <int K>
__device__ void route(const ByteRows& router, int expert, const float* gain, const float* x, float* logits,
                      int rows) {
  constexpr int lane_codes = 16;
  constexpr int chunks = K / (warp_threads * lane_codes);
  const int lane = lane_id();
  uint4 codes[chunks];
  std::uint32_t scales[chunks];
  const auto column = [&](int chunk) { return (chunk * warp_threads + lane) * lane_codes; };
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    codes[c] = load_weights(router.codes + static_cast<std::size_t>(expert) * K + column(c));
    scales[c] = __ldg(router.scales + expert * (K / tile_columns) + column(c) / tile_columns);
  }
  wait_for_predecessor();
  release_successor();
  for (int row = 0; row < rows; ++row) {
    float product = 0;
    float squares = 0;
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const std::uint32_t words[4] = {codes[c].x, codes[c].y, codes[c].z, codes[c].w};
      float sum = 0;
      float weighted = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 value = *reinterpret_cast<const float4*>(x + row * K + column(c) + 4 * i);
        const float4 scale = *reinterpret_cast<const float4*>(gain + column(c) + 4 * i);
        squares += value.x * value.x + value.y * value.y + value.z * value.z + value.w * value.w;
        const float n[4] = {value.x * scale.x, value.y * scale.y, value.z * scale.z, value.w * scale.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum += n[j];
          weighted = fmaf(static_cast<float>((words[i] >> (8 * j)) & 0xFFU), n[j], weighted);
        }
      }
      product += scale_of(scales[c]) * weighted + bias_of(scales[c]) * sum;
    }
    product = sum_of_warp(product);
    squares = sum_of_warp(squares);
    if (lane == 0) logits[row * router.rows + expert] = product / sqrtf(squares / K + rms_norm_epsilon);
  }
}

/// Blocks 0 .. tiles of the shared expert have one each; the others have a row of the router a warp.
template <int K, int NB>
__global__ __launch_bounds__(Layout<K, NB>::threads, NB == 1 ? 3 : 1) void router_kernel(DeviceLayer layer,
                                                                                         DecodeState state,
                                                                                         int rows) {
  using L = Layout<K, NB>;
  const int tiles = layer.shared_gate_up.rows / tile_rows;
  const int block = static_cast<int>(blockIdx.x);
  if (block >= tiles) {
    const int expert = (block - tiles) * L::warps + warp_id();
    if (expert < layer.router.rows)
      route<K>(layer.router, expert, layer.post_attention_norm, state.x, state.router, rows);
    return;
  }
  __shared__ float squares[L::warps][L::rows];
  const int channels = layer.shared_gate_up.rows / 2;
  walk_tiles<K, NB, tile_rows / 2>(
      layer.shared_gate_up, block, tiles, rows,
      [&](auto& activations, int part) {
        float mine[NB] = {};
        activations.load(part * groups_of_warp, rows,
                         NormedRows{state.x, layer.post_attention_norm, K, mine});
        store_squares<NB>(mine, squares[part]);
      },
      [&](int tile, int channel, int row, auto sum) {
        const float factor = inverse_rms<L::warps, K>(&squares[0][row], L::rows) / residual_scale;
        state.shared[row * channels + tile * (tile_rows / 2) + channel] =
            silu(sum(channel) * factor) * (sum(channel + tile_rows / 2) * factor);
      });
}

/// A block has a tile of one of the eight experts of a row.
template <int K, int Experts>
__global__ __launch_bounds__(Layout<K, 1>::threads, 3) void gate_up_kernel(DeviceLayer layer,
                                                                           DecodeState state) {
  using L = Layout<K, 1>;
  const int tile = static_cast<int>(blockIdx.x);
  const int choice = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z);
  const int part = warp_id();
  __shared__ float squares[L::warps][L::rows];
  __shared__ float partials[L::warps][L::partial];
  wait_for_predecessor();
  release_successor();

  const Choice chosen = choose<Experts>(state.router + row * (Experts + 1));
  int expert = 0;
#pragma unroll
  for (int n = 0; n < top; ++n) {
    if (n == choice) expert = chosen.experts[n];
  }
  const TileStack& stack = layer.expert_gate_up;
  constexpr std::size_t row_bytes = static_cast<std::size_t>(K / tile_columns) * tile_bytes;
  TilePart<groups_of_warp> weights;
  weights.load(stack.data + (static_cast<std::size_t>(expert) * (stack.rows / tile_rows) + tile) * row_bytes +
               part * groups_of_warp * tile_bytes);

  Activations<groups_of_warp, 1> x;
  float mine[1] = {};
  x.load(part * groups_of_warp, 1,
         NormedRows{state.x + static_cast<std::size_t>(row) * K, layer.post_attention_norm, K, mine});
  store_squares<1>(mine, squares[part]);
  TileProduct<1> product;
  product.add(weights, x);
  product.store(partials[part]);
  __syncthreads();
  const int channel = static_cast<int>(threadIdx.x);
  if (channel >= tile_rows / 2) return;
  const float factor = inverse_rms<L::warps, K>(&squares[0][0], L::rows) / residual_scale;
  const auto sum = [&](int r) { return sum_partials<L::warps>(&partials[0][r * L::rows], L::partial); };
  const int channels = stack.rows / 2;
  state.inner[(row * top + choice) * channels + tile * (tile_rows / 2) + channel] =
      silu(sum(channel) * factor) * (sum(channel + tile_rows / 2) * factor);
}

/// Inner activations of one expert.
struct InnerRow {
  const float* inner;
  __device__ float2 operator()(int, int k) const {
    const float2 value = *reinterpret_cast<const float2*>(inner + k);
    return {value.x * inner_scale, value.y * inner_scale};
  }
};

/// How the warps of a block share the columns of a down projection.
template <int K>
struct DownParts {
  static constexpr int groups = K / tile_columns;
  static constexpr int groups_of_part = groups < groups_of_warp ? groups : groups_of_warp;
  static constexpr int warps = groups / groups_of_part;
};

/// A warp's part of a tile of one down projection, times the expert's share.
template <int K>
struct DownPart {
  using P = DownParts<K>;
  TilePart<P::groups_of_part> weights;

  __device__ void load(const std::byte* matrix, int tile, int part) {
    weights.load(matrix +
                 (static_cast<std::size_t>(tile) * P::groups + part * P::groups_of_part) * tile_bytes);
  }
  __device__ void multiply(const float* inner, int part, float share, float* partial) const {
    Activations<P::groups_of_part, 1> x;
    x.load(part * P::groups_of_part, 1, InnerRow{inner});
    TileProduct<1> product;
    product.add(weights, x);
    const float factor = share / inner_scale;
    product.value[0][0] *= factor;
    product.value[0][1] *= factor;
    product.store(partial);
  }
};

template <class Model>
constexpr int down_warps() {
  return top * DownParts<Model::shape.expert_hidden>::warps +
         DownParts<Model::shape.shared_expert_hidden>::warps;
}

/// A block has a tile of the sum over all experts of a row.
template <class Model>
__global__ __launch_bounds__(down_warps<Model>() * warp_threads, 1) void down_kernel(DeviceLayer layer,
                                                                                     DecodeState state) {
  constexpr Shape S = Model::shape;
  using Routed = DownParts<S.expert_hidden>;
  constexpr int partial_floats = tile_rows * block_rows;
  const int tile = static_cast<int>(blockIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  const int warp = warp_id();
  __shared__ float partials[down_warps<Model>()][partial_floats];

  const float* const logits = state.router + row * (S.experts + 1);
  if (warp < top * Routed::warps) {
    const Choice chosen = choose<S.experts>(logits);
    const int mine = warp / Routed::warps;
    const int part = warp % Routed::warps;
    int expert = 0;
    float share = 0;
#pragma unroll
    for (int n = 0; n < top; ++n) {
      if (n == mine) {
        expert = chosen.experts[n];
        share = chosen.shares[n];
      }
    }
    DownPart<S.expert_hidden> down;
    down.load(layer.expert_down.data + expert * tiled_bytes(S.hidden, S.expert_hidden), tile, part);
    wait_for_predecessor();
    release_successor();
    down.multiply(state.inner + (row * top + mine) * S.expert_hidden, part, share, partials[warp]);
  } else {
    const int part = warp - top * Routed::warps;
    DownPart<S.shared_expert_hidden> down;
    down.load(layer.shared_down.data, tile, part);
    wait_for_predecessor();
    release_successor();
    down.multiply(state.shared + row * S.shared_expert_hidden, part, sigmoid(logits[S.experts]),
                  partials[warp]);
  }
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x);
  if (r < tile_rows)
    state.x[static_cast<std::size_t>(row) * S.hidden + tile * tile_rows + r] +=
        sum_partials<down_warps<Model>()>(&partials[0][r * block_rows], partial_floats);
}

}  // namespace

template <class Model>
void decode_experts(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows) {
  constexpr Shape S = Model::shape;
  const auto count = static_cast<unsigned>(rows);
  with_row_blocks(rows, [&](auto nb) {
    using L = Layout<S.hidden, nb()>;
    constexpr int router_blocks = (S.experts + 1 + L::warps - 1) / L::warps;
    const int tiles = layer.shared_gate_up.rows / tile_rows;
    launch_chained(stream, {dim3(static_cast<unsigned>(tiles + router_blocks)), L::threads},
                   router_kernel<S.hidden, nb()>, layer, state, rows);
  });
  launch_chained(stream, {dim3(2 * S.expert_hidden / tile_rows, top, count), Layout<S.hidden, 1>::threads},
                 gate_up_kernel<S.hidden, S.experts>, layer, state);
  launch_chained(stream, {dim3(S.hidden / tile_rows, count), down_warps<Model>() * warp_threads},
                 down_kernel<Model>, layer, state);
}

template void decode_experts<Qwen36>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void decode_experts<Demo>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);

}  // namespace calla::cuda
