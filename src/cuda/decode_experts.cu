// The experts of decode.
//
//   h = norm(x);  logits = router h;  shares = softmax over the eight largest
//   x += sum of share_e down_e(silu(gate_e h) * up_e h) + sigmoid(logits[experts]) shared(h)
// Three kernels: the router with the shared expert's first half, whose last block chooses; the chosen
// experts' first halves; all second halves with their sum. These read the choice, and with it their weights,
// before their predecessor ends: it comes from the kernel before.
//
// Shapes: router [experts + 1][hidden] of 8 bits; a pair of rows of gate and up lies in one tile. Rounding:
// linear.cuh; the router in float32. Bytes moved in a layer of the 35B: 16.5 MB, once for each row. Bound by
// them and by the choice, before which the first halves' weights cannot be read.
#include <cuda_runtime.h>

#include "cuda/decode.h"
#include "cuda/decode_tiles.cuh"
#include "cuda/launch.h"

namespace calla::cuda {
namespace {

constexpr int top = Shape::experts_per_token;
constexpr float inner_factor = 1.0F / 64.0F;  // keeps the inner activations in the range of half

/// Chooses a row's experts, largest logit first, the lower id first among equals, by a whole block: a thread
/// counts those that come before its own. Shares get the softmax over the chosen and, last, the shared
/// expert's gate.
template <int Experts>
__device__ void choose(const float* logits, int* chosen, float* shares) {
  __shared__ float all[Experts];
  __shared__ float best[top];
  for (int expert = static_cast<int>(threadIdx.x); expert < Experts; expert += static_cast<int>(blockDim.x))
    all[expert] = __ldcg(logits + expert);
  __syncthreads();
  for (int expert = static_cast<int>(threadIdx.x); expert < Experts; expert += static_cast<int>(blockDim.x)) {
    const float mine = all[expert];
    int rank = 0;
#pragma unroll 16
    for (int i = 0; i < Experts; ++i) rank += all[i] > mine || (all[i] == mine && i < expert) ? 1 : 0;
    if (rank < top) {
      best[rank] = mine;
      chosen[rank] = expert;
    }
  }
  __syncthreads();
  if (threadIdx.x < top) {
    float total = 0;
#pragma unroll
    for (const float logit : best) total += expf(logit - best[0]);
    shares[threadIdx.x] = expf(best[threadIdx.x] - best[0]) / total;
  } else if (threadIdx.x == top) {
    shares[top] = sigmoid(__ldcg(logits + Experts));
  }
  __syncthreads();
}

/// A row of the router times the normed rows, by a warp; 512 columns at a time.
template <int K>
__device__ void route(const ByteRows& router, int expert, const float* gain, const float* x, float* logits,
                      int first_row, int rows) {
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
  for (int row = first_row; row < first_row + rows; ++row) {
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

/// The block that is the last of `blocks` to come here: all that they have written before is visible to it.
/// The counter is at zero again for the next time.
__device__ bool arrives_last(unsigned* arrivals, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(arrivals, blocks - 1) == blocks - 1;
  __syncthreads();
  __threadfence();
  return last;
}

/// Blocks 0 .. tiles of the shared expert have one each; the others have a row of the router a warp, and the
/// last of them chooses.
template <int K, int R, int Experts>
__global__ __launch_bounds__(Layout<K, R, 1>::threads, 3) void router_kernel(DeviceLayer layer,
                                                                             DecodeState state, int rows) {
  using L = Layout<K, R, 1>;
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  const int tiles = layer.shared_gate_up.rows / tile_rows;
  const int block = static_cast<int>(blockIdx.x);
  const int first_row = static_cast<int>(blockIdx.y) * R;
  const int block_rows = rows_of_block<R>(rows);
  if (block >= tiles) {
    const int expert = (block - tiles) * L::warps + warp_id();
    if (expert <= Experts)
      route<K>(layer.router, expert, layer.post_attention_norm, state.x, state.router, first_row, block_rows);
    if (!arrives_last(state.arrivals + blockIdx.y, gridDim.x - static_cast<unsigned>(tiles))) return;
    for (int row = first_row; row < first_row + block_rows; ++row)
      choose<Experts>(state.router + row * (Experts + 1), state.chosen + row * top,
                      state.shares + row * (top + 1));
    return;
  }
  const int channels = layer.shared_gate_up.rows / 2;
  walk_tiles<K, R, 1, tile_rows / 2>(
      layer.shared_gate_up.data, tiles, shared, block, tiles, block_rows,
      [&](auto& part, int warp) {
        const int column = (warp * warp_threads + lane_id()) * 8;
        NormedColumns<R> normed(layer.post_attention_norm, column);
        wait_for_predecessor();
        release_successor();
        part.fill(block_rows, [&](int row, float(&values)[8]) {
          normed(state.x + static_cast<std::size_t>(first_row + row) * K + column, row, values);
        });
        normed.store(shared.squares[warp]);
      },
      [&](int tile, int channel, int row, auto sum) {
        const float factor = inverse_rms<L::warps, K, R>(shared.squares, row) / residual_scale;
        state.shared[(first_row + row) * channels + tile * (tile_rows / 2) + channel] =
            silu(sum(channel) * factor) * (sum(channel + tile_rows / 2) * factor);
      });
}

// Tiles of an expert that a block has, all on their way at once.
constexpr int expert_stages = 2;

/// A block has some tiles of one of the eight experts of a row.
template <int K>
__global__ __launch_bounds__(Layout<K, 1, expert_stages>::threads) void gate_up_kernel(DeviceLayer layer,
                                                                                       DecodeState state) {
  using L = Layout<K, 1, expert_stages>;
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  const int choice = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z);
  const int column = (warp_id() * warp_threads + lane_id()) * 8;
  NormedColumns<1> normed(layer.post_attention_norm, column);
  // The residual stream is older than the predecessor.
  shared.parts[warp_id()].fill(1, [&](int, float(&values)[8]) {
    normed(state.x + static_cast<std::size_t>(row) * K + column, 0, values);
  });
  normed.store(shared.squares[warp_id()]);
  wait_for_predecessor();
  release_successor();

  const int expert = state.chosen[row * top + choice];
  const TileStack& stack = layer.expert_gate_up;
  const int channels = stack.rows / 2;
  walk_tiles<K, 1, expert_stages, tile_rows / 2>(
      stack.data + static_cast<std::size_t>(expert) * tiled_bytes(stack.rows, K), stack.rows / tile_rows,
      shared, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), 1, [](auto&, int) {},
      [&](int tile, int channel, int, auto sum) {
        const float factor = inverse_rms<L::warps, K, 1>(shared.squares, 0) / residual_scale;
        state.inner[(row * top + choice) * channels + tile * (tile_rows / 2) + channel] =
            silu(sum(channel) * factor) * (sum(channel + tile_rows / 2) * factor);
      });
}

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
  using Part = Activations<P::groups_of_part, 1>;
  StagedPart<P::groups_of_part> weights;
  Part x;

  __device__ void start(const std::byte* matrix, int tile, int part) {
    weights.copy(matrix +
                 (static_cast<std::size_t>(tile) * P::groups + part * P::groups_of_part) * tile_bytes);
    commit_copies();
  }
  __device__ void multiply(const float* inner, int part, float share, float* partial) {
    x.fill(1, [&](int, float(&values)[8]) {
      load8(inner + (part * P::groups_of_part * tile_columns + lane_id() * 8), values);
#pragma unroll
      for (float& value : values) value *= inner_factor;
    });
    wait_for_copies<0>();
    __syncwarp();
    TileProduct<1> product;
    product.add(weights, x);
    const float factor = share / inner_factor;
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

template <class Model>
struct DownShared {
  static constexpr int routed_warps = top * DownParts<Model::shape.expert_hidden>::warps;
  DownPart<Model::shape.expert_hidden> routed[routed_warps];
  DownPart<Model::shape.shared_expert_hidden> common[down_warps<Model>() - routed_warps];
  float partials[down_warps<Model>()][tile_rows];
};

/// A block has a tile of the sum over all experts of a row.
template <class Model>
__global__ __launch_bounds__(down_warps<Model>() * warp_threads, 1) void down_kernel(DeviceLayer layer,
                                                                                     DecodeState state) {
  constexpr Shape S = Model::shape;
  using Routed = DownParts<S.expert_hidden>;
  constexpr int routed_warps = top * Routed::warps;
  const int tile = static_cast<int>(blockIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  const int warp = warp_id();
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<DownShared<Model>*>(raw);

  // Older than the predecessor: the residual stream, and the choice.
  float* const mine = state.x + static_cast<std::size_t>(row) * S.hidden + tile * tile_rows + threadIdx.x;
  const float residual = threadIdx.x < tile_rows ? __ldcg(mine) : 0.0F;
  const float* const shares = state.shares + row * (top + 1);
  if (warp < routed_warps) {
    const int choice = warp / Routed::warps;
    const int part = warp % Routed::warps;
    const int expert = __ldcg(state.chosen + row * top + choice);
    shared.routed[warp].start(layer.expert_down.data + expert * tiled_bytes(S.hidden, S.expert_hidden), tile,
                              part);
    const float share = __ldcg(shares + choice);
    wait_for_predecessor();
    release_successor();
    shared.routed[warp].multiply(state.inner + (row * top + choice) * S.expert_hidden, part, share,
                                 shared.partials[warp]);
  } else {
    const int part = warp - routed_warps;
    shared.common[part].start(layer.shared_down.data, tile, part);
    const float share = __ldcg(shares + top);
    wait_for_predecessor();
    release_successor();
    shared.common[part].multiply(state.shared + row * S.shared_expert_hidden, part, share,
                                 shared.partials[warp]);
  }
  __syncthreads();
  if (threadIdx.x < tile_rows)
    *mine = residual + sum_partials<down_warps<Model>()>(&shared.partials[0][threadIdx.x], tile_rows);
}

}  // namespace

template <class Model>
void decode_experts(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows) {
  constexpr Shape S = Model::shape;
  const auto count = static_cast<unsigned>(rows);
  with_block_rows(rows, [&](auto r, unsigned row_blocks) {
    using L = Layout<S.hidden, r(), 1>;
    constexpr int router_blocks = (S.experts + 1 + L::warps - 1) / L::warps;
    const int tiles = layer.shared_gate_up.rows / tile_rows;
    launch_large(
        stream, {dim3(static_cast<unsigned>(tiles + router_blocks), row_blocks), L::threads, L::shared_bytes},
        router_kernel<S.hidden, r(), S.experts>, layer, state, rows);
  });
  using L = Layout<S.hidden, 1, expert_stages>;
  constexpr unsigned blocks = (2 * S.expert_hidden / tile_rows + expert_stages - 1) / expert_stages;
  launch_large(stream, {dim3(blocks, top, count), L::threads, L::shared_bytes}, gate_up_kernel<S.hidden>,
               layer, state);
  launch_large(
      stream,
      {dim3(S.hidden / tile_rows, count), down_warps<Model>() * warp_threads, sizeof(DownShared<Model>)},
      down_kernel<Model>, layer, state);
}

template void decode_experts<Qwen36>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void decode_experts<Demo>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);

}  // namespace calla::cuda
