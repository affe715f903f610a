// Second kernel of DeltaNet prefill: the state through the chunks, one after the other.
//
// A block has a value head and some of its 128 columns of v; columns do not depend on each other. Per chunk
//   U = U0 - W S     O = e^(G_i) Q S + P U     S = e^(G_C) S + (e^(G_C - G) K)^T U
// with S [128 of k][columns] as float accumulators in registers, a tile of 16 rows a warp, and a half copy of
// it, and of U, in shared memory as B operands. A operands come as fragments from global memory, each to the
// one warp that uses it, a chunk ahead. Rounding: operands half, accumulators float, e^.. in float after the
// products. Bytes a block and chunk: 60 KB from the second-level cache, which with the chain of products
// bounds it.
#pragma once
#include "cuda/delta_prefill_workspace.cuh"
#include "cuda/mixer_fragments.cuh"

namespace calla::cuda {

inline constexpr int delta_scan_threads = 256;

namespace delta {

/// A chunk's operands of one lane. Warps 0 .. 3 compute U, 16 tokens each, warps 4 .. 7 O.
struct ScanOperands {
  uint4 a[8];         // W or Q
  uint4 k[4];         // K^T
  uint4 uv[4];        // U0 (two of them), or P
  float decay[2];     // of the lane's two tokens: e^(G_C - G) or e^G
  float chunk_decay;  // e^(G_C)

  template <int key_heads, int value_heads>
  __device__ void load(const DeltaWorkspace<key_heads, value_heads>& from, int chunk, int head, int part,
                       int warp, int lane) {
    constexpr int tile = DeltaWorkspace<key_heads, value_heads>::tile;
    const int m = warp % 4;
    const bool of_update = warp < 4;
    const std::size_t key =
        (static_cast<std::size_t>(chunk) * key_heads + head * key_heads / value_heads) * tile;
    const std::size_t value_head = static_cast<std::size_t>(chunk) * value_heads + head;
    const std::size_t value = value_head * tile;
    const uint4* const first = (of_update ? from.w + value : from.q + key) + m * 8 * 32 + lane;
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = first[i * 32];
#pragma unroll
    for (int i = 0; i < 4; ++i) k[i] = from.k[key + (warp * 4 + i) * 32 + lane];
    const float* const decays = from.decays + value_head * 2 * delta_chunk;
    const int row = 16 * m + lane / 4;
    if (of_update) {
#pragma unroll
      for (int i = 0; i < 2; ++i) uv[i] = from.u[value + ((part * 4 + m) * 2 + i) * 32 + lane];
      decay[0] = decays[delta_chunk + row];
      decay[1] = decays[delta_chunk + row + 8];
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i <= m) uv[i] = from.p[value / 2 + (m * 4 + i) * 32 + lane];
      decay[0] = decays[row];
      decay[1] = decays[row + 8];
    }
    chunk_decay = decays[delta_chunk - 1];
  }
};

}  // namespace delta

template <int key_heads, int value_heads>
__global__ __launch_bounds__(delta_scan_threads,
                             1) void delta_scan_kernel(DeltaWorkspace<key_heads, value_heads> workspace,
                                                       float* state, __half* y, int tokens) {
  constexpr int dim = Shape::delta_head_dim;
  constexpr int columns = delta_columns;
  constexpr int tiles = columns / 8;
  constexpr int pitch = columns + 8;
  __shared__ alignas(16) __half state_copy[dim * pitch];
  __shared__ alignas(16) __half update_copy[delta_chunk * pitch];
  __shared__ alignas(16) __half decayed_copy[delta_chunk * pitch];
  const SharedMatrix<PaddedRows> states = {state_copy, pitch};
  const SharedMatrix<PaddedRows> updates = {update_copy, pitch};
  const SharedMatrix<PaddedRows> decayed = {decayed_copy, pitch};
  const int part = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4;
  const int t = lane % 4;
  const int m = warp % 4;

  wait_for_predecessor();
  // Rows 16 warp + g and + 8 of S; the columns of V in the places of delta_value_place.
  float s[tiles][4];
  float* const states_of_head = state + static_cast<std::size_t>(head) * dim * dim;
  const auto state_at = [&](int tile, int i) -> float& {
    const int column = part * columns + 8 * t + 2 * tile + i % 2;
    return states_of_head[column * dim + 16 * warp + g + i / 2 * 8];
  };
#pragma unroll
  for (int n = 0; n < tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = state_at(n, i);
  }

  const auto store_tile = [&](__half* matrix, int row, int n, float a, float b) {
    *reinterpret_cast<std::uint32_t*>(matrix + row * pitch + n * 8 + 2 * t) = pack_half(a, b);
  };
  const auto advance = [&](int chunk, const delta::ScanOperands& now, delta::ScanOperands& next) {
    const int chunks = delta_chunks(tokens);
    if (chunk + 1 < chunks) next.load(workspace, chunk + 1, head, part, warp, lane);
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      store_tile(state_copy, 16 * warp + g, n, s[n][0], s[n][1]);
      store_tile(state_copy, 16 * warp + g + 8, n, s[n][2], s[n][3]);
    }
    __syncthreads();

    float product[tiles][4] = {};  // W S or Q S
#pragma unroll
    for (int step = 0; step < 8; ++step) {
#pragma unroll
      for (int n = 0; n < tiles; n += 2)
        mma_pair(product[n], product[n + 1], now.a[step], states.b(16 * step, 8 * n, lane));
    }
    const int row = 16 * m + g;
    if (warp < 4) {
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        const uint4& pair = now.uv[n / 2];
        const float2 upper = unpack_half(n % 2 == 0 ? pair.x : pair.z);
        const float2 lower = unpack_half(n % 2 == 0 ? pair.y : pair.w);
        const float u[4] = {upper.x - product[n][0], upper.y - product[n][1], lower.x - product[n][2],
                            lower.y - product[n][3]};
        store_tile(update_copy, row, n, u[0], u[1]);
        store_tile(update_copy, row + 8, n, u[2], u[3]);
        store_tile(decayed_copy, row, n, u[0] * now.decay[0], u[1] * now.decay[0]);
        store_tile(decayed_copy, row + 8, n, u[2] * now.decay[1], u[3] * now.decay[1]);
      }
    }
    __syncthreads();

#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= now.chunk_decay;
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int n = 0; n < tiles; n += 2)
        mma_pair(s[n], s[n + 1], now.k[step], decayed.b(16 * step, 8 * n, lane));
    }
    if (warp >= 4) {
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) product[n][i] *= now.decay[i / 2];
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if (step > m) continue;
#pragma unroll
        for (int n = 0; n < tiles; n += 2)
          mma_pair(product[n], product[n + 1], now.uv[step], updates.b(16 * step, 8 * n, lane));
      }
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int token = chunk * delta_chunk + row + 8 * side;
        if (token >= tokens) continue;
        __half* const to =
            y + (static_cast<std::size_t>(token) * value_heads + head) * dim + part * columns + 8 * t;
        const auto two = [&](int n) { return pack_half(product[n][2 * side], product[n][2 * side + 1]); };
        *reinterpret_cast<uint4*>(to) = uint4{two(0), two(1), two(2), two(3)};
      }
    }
  };

  delta::ScanOperands even;
  delta::ScanOperands odd;
  even.load(workspace, 0, head, part, warp, lane);
  for (int chunk = 0; chunk < delta_chunks(tokens); chunk += 2) {
    advance(chunk, even, odd);
    if (chunk + 1 < delta_chunks(tokens)) advance(chunk + 1, odd, even);
  }

#pragma unroll
  for (int n = 0; n < tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state_at(n, i) = s[n][i];
  }
}

}  // namespace calla::cuda
