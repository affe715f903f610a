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

/// Chooses a row's experts, largest logit first, the lower id first among equals, by a whole warp: shares get
/// the softmax over the chosen and, last, the shared expert's gate.
template <int Experts>
__device__ void choose(const float* logits, int* chosen, float* shares) {
  constexpr int mine = Experts / warp_threads;
  const int lane = lane_id();
  unsigned keys[mine];  // ordered as the logits are
#pragma unroll
  for (int i = 0; i < mine; ++i) {
    const unsigned bits = __float_as_uint(__ldcg(logits + lane * mine + i));
    keys[i] = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  }
  int expert = 0;  // of this lane's place
  float value = -INFINITY;
  for (int n = 0; n < top; ++n) {
    unsigned highest = 0;
#pragma unroll
    for (unsigned key : keys) highest = max(highest, key);
    const unsigned winner = __reduce_max_sync(0xFFFFFFFFU, highest);
    const int winning_lane = __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFU, highest == winner))) - 1;
    int index = 0;
#pragma unroll
    for (int i = mine - 1; i >= 0; --i) {
      if (keys[i] == winner) index = i;
    }
    index = __shfl_sync(0xFFFFFFFFU, index, winning_lane);
#pragma unroll
    for (int i = 0; i < mine; ++i) {
      if (lane == winning_lane && i == index) keys[i] = 0;
    }
    if (lane == n) {
      expert = winning_lane * mine + index;
      value = __uint_as_float((winner & 0x80000000U) != 0 ? winner & 0x7FFFFFFFU : ~winner);
    }
  }
  const float peak = __shfl_sync(0xFFFFFFFFU, value, 0);
  const float weight = lane < top ? expf(value - peak) : 0.0F;
  float total = 0;
#pragma unroll
  for (int n = 0; n < top; ++n) total += __shfl_sync(0xFFFFFFFFU, weight, n);
  if (lane < top) {
    chosen[lane] = expert;
    shares[lane] = weight / total;
  } else if (lane == top) {
    shares[top] = sigmoid(__ldcg(logits + Experts));
  }
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
__global__ __launch_bounds__(Layout<K, R>::threads,
                             R == 1 ? 1024 / Layout<K, R>::threads
                                    : 1) void router_kernel(DeviceLayer layer, DecodeState state, int rows) {
  using L = Layout<K, R>;
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
    for (int row = first_row + warp_id(); row < first_row + block_rows; row += L::warps)
      choose<Experts>(state.router + row * (Experts + 1), state.chosen + row * top,
                      state.shares + row * (top + 1));
    return;
  }
  const int channels = layer.shared_gate_up.rows / 2;
  walk_tiles<K, R, tile_rows / 2>(
      layer.shared_gate_up, shared, block, tiles, block_rows,
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

/// A block has a tile of one of the eight experts of a row.
template <int K>
__global__ __launch_bounds__(Layout<K, 1>::threads,
                             1024 / Layout<K, 1>::threads) void gate_up_kernel(DeviceLayer layer,
                                                                               DecodeState state) {
  using L = Layout<K, 1>;
  const int tile = static_cast<int>(blockIdx.x);
  const int choice = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z);
  const int part = warp_id();
  const int column = (part * warp_threads + lane_id()) * 8;
  __shared__ __align__(16) typename L::Shared shared;
  NormedColumns<1> normed(layer.post_attention_norm, column);
  wait_for_predecessor();
  release_successor();

  const int expert = state.chosen[row * top + choice];
  const TileStack& stack = layer.expert_gate_up;
  constexpr std::size_t row_bytes = static_cast<std::size_t>(K / tile_columns) * tile_bytes;
  TilePart<groups_of_warp> weights;
  weights.load(stack.data + (static_cast<std::size_t>(expert) * (stack.rows / tile_rows) + tile) * row_bytes +
               part * groups_of_warp * tile_bytes);

  shared.parts[part].fill(1, [&](int, float(&values)[8]) {
    normed(state.x + static_cast<std::size_t>(row) * K + column, 0, values);
  });
  normed.store(shared.squares[part]);
  TileProduct<1> product;
  product.add(weights, shared.parts[part]);
  product.store(shared.partials[0][part]);
  __syncthreads();
  const int channel = static_cast<int>(threadIdx.x);
  if (channel >= tile_rows / 2) return;
  const float factor = inverse_rms<L::warps, K, 1>(shared.squares, 0) / residual_scale;
  const auto sum = [&](int r) { return sum_partials<L::warps>(&shared.partials[0][0][r], L::partial); };
  const int channels = stack.rows / 2;
  state.inner[(row * top + choice) * channels + tile * (tile_rows / 2) + channel] =
      silu(sum(channel) * factor) * (sum(channel + tile_rows / 2) * factor);
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
  TilePart<P::groups_of_part> weights;

  __device__ void load(const std::byte* matrix, int tile, int part) {
    weights.load(matrix +
                 (static_cast<std::size_t>(tile) * P::groups + part * P::groups_of_part) * tile_bytes);
  }
  __device__ void multiply(Part& x, const float* inner, int part, float share, float* partial) const {
    x.fill(1, [&](int, float(&values)[8]) {
      load8(inner + (part * P::groups_of_part * tile_columns + lane_id() * 8), values);
#pragma unroll
      for (float& value : values) value *= inner_factor;
    });
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
  __shared__ float partials[down_warps<Model>()][tile_rows];
  __shared__ __align__(16) typename DownPart<S.expert_hidden>::Part routed[routed_warps];
  __shared__ __align__(16)
      typename DownPart<S.shared_expert_hidden>::Part common[down_warps<Model>() - routed_warps];

  const float* const shares = state.shares + row * (top + 1);
  if (warp < routed_warps) {
    const int mine = warp / Routed::warps;
    const int part = warp % Routed::warps;
    // Chosen by the kernel before the predecessor.
    const int expert = __ldcg(state.chosen + row * top + mine);
    const float share = __ldcg(shares + mine);
    DownPart<S.expert_hidden> down;
    down.load(layer.expert_down.data + expert * tiled_bytes(S.hidden, S.expert_hidden), tile, part);
    wait_for_predecessor();
    release_successor();
    down.multiply(routed[warp], state.inner + (row * top + mine) * S.expert_hidden, part, share,
                  partials[warp]);
  } else {
    const int part = warp - routed_warps;
    DownPart<S.shared_expert_hidden> down;
    down.load(layer.shared_down.data, tile, part);
    wait_for_predecessor();
    release_successor();
    down.multiply(common[part], state.shared + row * S.shared_expert_hidden, part, __ldcg(shares + top),
                  partials[warp]);
  }
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x);
  if (r < tile_rows)
    state.x[static_cast<std::size_t>(row) * S.hidden + tile * tile_rows + r] +=
        sum_partials<down_warps<Model>()>(&partials[0][r], tile_rows);
}

}  // namespace

template <class Model>
void decode_experts(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows) {
  constexpr Shape S = Model::shape;
  const auto count = static_cast<unsigned>(rows);
  with_block_rows(rows, [&](auto r, unsigned row_blocks) {
    using L = Layout<S.hidden, r()>;
    constexpr int router_blocks = (S.experts + 1 + L::warps - 1) / L::warps;
    const int tiles = layer.shared_gate_up.rows / tile_rows;
    launch_large(
        stream, {dim3(static_cast<unsigned>(tiles + router_blocks), row_blocks), L::threads, L::shared_bytes},
        router_kernel<S.hidden, r(), S.experts>, layer, state, rows);
  });
  launch_chained(stream, {dim3(2 * S.expert_hidden / tile_rows, top, count), Layout<S.hidden, 1>::threads},
                 gate_up_kernel<S.hidden>, layer, state);
  launch_chained(stream, {dim3(S.hidden / tile_rows, count), down_warps<Model>() * warp_threads},
                 down_kernel<Model>, layer, state);
}

template void decode_experts<Qwen36>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);
template void decode_experts<Demo>(cudaStream_t, const DeviceLayer&, const DecodeState&, int);

}  // namespace calla::cuda
