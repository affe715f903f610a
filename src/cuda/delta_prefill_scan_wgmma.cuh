// Second kernel of DeltaNet prefill on Hopper: delta_prefill_scan.cuh by warpgroups, pairs of blocks in
// clusters.
//
// Two blocks of a head are a cluster: each copies a half of W, Q, K^T and P, and both receive it, into a ring
// of three chunks. (Clusters of four blocks do not all find room at once.) A operands go from there to
// registers; S and U are the B operands in shared memory. The first warpgroup computes U, the second O; both
// have 64 rows of S. Three waits a chunk: for the operands, for the half copy of S, for U. Rounding as in
// delta_prefill_scan.cuh. Bytes a block and chunk: 32 KB from the second-level cache. What bounds it is the
// chain of products and waits, and shared memory: 160 KB written and read.
#pragma once
#include "cuda/delta_prefill_workspace.cuh"
#include "cuda/mixer_fragments.cuh"
#include "cuda/mixer_wgmma.cuh"
#include "cuda/wgmma.cuh"

namespace calla::cuda {

inline constexpr int delta_cluster = 2;
inline constexpr int delta_scan_wgmma_threads = 288;  // two warpgroups, and a warp that copies

namespace delta {

/// Where things lie in a block's shared memory.
struct ScanRing {
  std::uint32_t base;

  static constexpr int stages = 3;
  // Rows of 32 columns, 64 bytes, their four 16-byte pieces exchanged by XOR with bits 1 and 2 of the row's
  // number.
  static constexpr int state_bytes = Shape::delta_head_dim * 64;
  static constexpr int update_bytes = delta_chunk * 64;
  // A chunk's operands.
  static constexpr int w = 0;
  static constexpr int q = w + 16384;
  static constexpr int k = q + 16384;
  static constexpr int p = k + 16384;
  static constexpr int u = p + 8192;
  static constexpr int decays = u + 4096;
  static constexpr int stage_bytes = decays + 2 * delta_chunk * static_cast<int>(sizeof(float));
  static constexpr int stages_at = state_bytes + 4 * update_bytes;
  static constexpr int barriers_at = stages_at + stages * stage_bytes;
  static constexpr int bytes = barriers_at + (2 * stages + 2) * 8;

  __device__ std::uint32_t state() const { return base; }
  /// U, or e^(G_C - G) U, of even and of odd chunks.
  __device__ std::uint32_t update(int chunk, int decayed) const {
    return base + state_bytes + (chunk % 2 * 2 + decayed) * update_bytes;
  }
  __device__ std::uint32_t stage(int chunk) const { return base + stages_at + chunk % stages * stage_bytes; }
  __device__ std::uint32_t full(int chunk) const { return base + barriers_at + chunk % stages * 8; }
  __device__ std::uint32_t empty(int chunk) const { return full(chunk) + stages * 8; }
  __device__ std::uint32_t state_ready() const { return base + barriers_at + 2 * stages * 8; }
  __device__ std::uint32_t update_ready() const { return state_ready() + 8; }
};
static_assert(ScanRing::bytes <= 232'448);

__device__ inline void wait_for(std::uint32_t barrier, int parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

/// One thread: fills the ring for all chunks.
template <int key_heads, int value_heads>
__device__ inline void copy_operands(const DeltaWorkspace<key_heads, value_heads>& from, const ScanRing& ring,
                                     int chunks, int head, int part) {
  constexpr int tile = DeltaWorkspace<key_heads, value_heads>::tile;
  constexpr std::uint16_t all = (1U << delta_cluster) - 1;
  const int rank = part % delta_cluster;  // in the cluster
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t key =
        (static_cast<std::size_t>(chunk) * key_heads + head * key_heads / value_heads) * tile;
    const std::size_t value_head = static_cast<std::size_t>(chunk) * value_heads + head;
    const std::size_t value = value_head * tile;
    const std::uint32_t to = ring.stage(chunk);
    const std::uint32_t full = ring.full(chunk);
    wait_for(ring.empty(chunk), chunk / ScanRing::stages % 2 ^ 1);
    barrier_expect(full, ScanRing::stage_bytes);
    const auto share = [&](int where, const uint4* source, int bytes) {
      const int offset = rank * (bytes / delta_cluster);
      bulk_copy_multicast(to + where + offset, source + offset / 16, bytes / delta_cluster, full, all);
    };
    share(ScanRing::w, from.w + value, 16384);
    share(ScanRing::q, from.q + key, 16384);
    share(ScanRing::k, from.k + key, 16384);
    share(ScanRing::p, from.p + value / 2, 8192);
    bulk_copy(to + ScanRing::u, from.u + value + part * (tile / delta_parts), 4096, full);
    bulk_copy(to + ScanRing::decays, from.decays + value_head * 2 * delta_chunk,
              ScanRing::stage_bytes - ScanRing::decays, full);
  }
}

/// The first warpgroup (`of_update`) or the second.
template <bool of_update, int value_heads>
__device__ inline void scan(const ScanRing& ring, float* states_of_head, __half* y, int tokens, int head,
                            int part) {
  constexpr int dim = Shape::delta_head_dim;
  constexpr int tiles = delta_columns / 8;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4;
  const int t = lane % 4;
  const int m = warp % 4;
  const int row = 16 * m + g;  // of the chunk, and row + 8
  const int chunks = delta_chunks(tokens);

  float s[tiles][4];  // rows 16 warp + g and + 8 of S; the columns in the places of delta_value_place
  const auto state_at = [&](int tile, int i) -> float& {
    const int column = part * delta_columns + 8 * t + 2 * tile + i % 2;
    return states_of_head[column * dim + 16 * warp + g + i / 2 * 8];
  };
#pragma unroll
  for (int n = 0; n < tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = state_at(n, i);
  }

  const auto store_rows = [&](std::uint32_t matrix, int first_row, const float(&d)[tiles][4], float upper,
                              float lower) {
    // Rows g and g + 8 have the same bits 1 and 2.
    const std::uint32_t to = matrix + (first_row + g) * 64 + 4 * t;
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
      const std::uint32_t piece = (n ^ g / 2 % 4) << 4;
      store_shared(to + piece, pack_half(d[n][0] * upper, d[n][1] * upper));
      store_shared(to + piece + 8 * 64, pack_half(d[n][2] * lower, d[n][3] * lower));
    }
  };
  // Other threads' products may read what this warp has stored.
  const auto announce = [&](std::uint32_t barrier) {
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  };

  uint4 a[8];   // W or Q
  uint4 k[4];   // K^T
  uint4 uv[4];  // U0 (two of them), or P
  float decay[2];
  float chunk_decay;
  float product[tiles][4];
  const auto load_first = [&](int chunk) {
    wait_for(ring.full(chunk), chunk / ScanRing::stages % 2);
    const std::uint32_t from =
        ring.stage(chunk) + (of_update ? ScanRing::w : ScanRing::q) + (m * 8 * 32 + lane) * 16;
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = load_shared(from + i * 512);
  };
  const auto load_rest = [&](int chunk) {
    const std::uint32_t stage = ring.stage(chunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) k[i] = load_shared(stage + ScanRing::k + ((warp * 4 + i) * 32 + lane) * 16);
    if constexpr (of_update) {
#pragma unroll
      for (int i = 0; i < 2; ++i) uv[i] = load_shared(stage + ScanRing::u + ((m * 2 + i) * 32 + lane) * 16);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Right of the diagonal there is nothing.
        const uint4 there = load_shared(stage + ScanRing::p + ((m * 4 + i) * 32 + lane) * 16);
        uv[i] = i <= m ? there : uint4{0, 0, 0, 0};
      }
    }
    const std::uint32_t decays = stage + ScanRing::decays;
    const std::uint32_t mine = decays + (of_update ? delta_chunk * 4 : 0) + row * 4;
    decay[0] = load_shared_float(mine);
    decay[1] = load_shared_float(mine + 8 * 4);
    chunk_decay = load_shared_float(decays + (delta_chunk - 1) * 4);
    __syncwarp();
    if (lane < delta_cluster) barrier_arrive_remote(ring.empty(chunk), lane);
  };
  const auto store_y = [&](int chunk) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const auto two = [&](int n) { return pack_half(product[n][2 * side], product[n][2 * side + 1]); };
      const uint4 columns = {two(0), two(1), two(2), two(3)};
      const int token = chunk * delta_chunk + row + 8 * side;
      __half* const to =
          y + (static_cast<std::size_t>(token) * value_heads + head) * dim + part * delta_columns + 8 * t;
      if (token < tokens) *reinterpret_cast<uint4*>(to) = columns;
    }
  };

  store_rows(ring.state(), 16 * warp, s, 1.0F, 1.0F);
  announce(ring.state_ready());
  load_first(0);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_for(ring.state_ready(), chunk % 2);
    wgmma_fence();
    const std::uint64_t states = describe_down_short_rows(ring.state());
#pragma unroll
    for (int step = 0; step < 8; ++step) wgmma_64x32(product, a[step], states + step * 64, step > 0);
    wgmma_commit();
    load_rest(chunk);
    wgmma_wait<0>();
    accumulators_arrived(product);
    if constexpr (of_update) {
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        const uint4& pair = uv[n / 2];
        const float2 upper = unpack_half(n % 2 == 0 ? pair.x : pair.z);
        const float2 lower = unpack_half(n % 2 == 0 ? pair.y : pair.w);
        product[n][0] = upper.x - product[n][0];
        product[n][1] = upper.y - product[n][1];
        product[n][2] = lower.x - product[n][2];
        product[n][3] = lower.y - product[n][3];
      }
      store_rows(ring.update(chunk, 1), 16 * m, product, decay[0], decay[1]);
      store_rows(ring.update(chunk, 0), 16 * m, product, 1.0F, 1.0F);
    }
    announce(ring.update_ready());  // and S has been read
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] *= chunk_decay;
        if (!of_update) product[n][i] *= decay[i / 2];
      }
    }

    wait_for(ring.update_ready(), chunk % 2);
    wgmma_fence();
    const std::uint64_t decayed = describe_down_short_rows(ring.update(chunk, 1));
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_64x32(s, k[step], decayed + step * 64, 1);
    wgmma_commit();
    if constexpr (!of_update) {
      const std::uint64_t updates = describe_down_short_rows(ring.update(chunk, 0));
#pragma unroll
      for (int step = 0; step < 4; ++step) wgmma_64x32(product, uv[step], updates + step * 64, 1);
      wgmma_commit();
    }
    load_first(min(chunk + 1, chunks - 1));  // the last chunk's twice
    wgmma_wait<of_update ? 0 : 1>();
    accumulators_arrived(s);
    store_rows(ring.state(), 16 * warp, s, 1.0F, 1.0F);
    announce(ring.state_ready());
    if constexpr (!of_update) {
      wgmma_wait<0>();
      accumulators_arrived(product);
      store_y(chunk);
    }
  }
#pragma unroll
  for (int n = 0; n < tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state_at(n, i) = s[n][i];
  }
}

}  // namespace delta

template <int key_heads, int value_heads>
__global__ __launch_bounds__(delta_scan_wgmma_threads,
                             1) void delta_scan_wgmma_kernel(DeltaWorkspace<key_heads, value_heads> workspace,
                                                             float* state, __half* y, int tokens) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  alignas(1024) extern __shared__ uint4 shared_memory[];
  const delta::ScanRing ring = {shared_address(shared_memory)};
  const int part = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < delta::ScanRing::stages; ++stage) {
      barrier_init(ring.full(stage), 1);
      barrier_init(ring.empty(stage), delta_cluster * 8);
    }
    barrier_init(ring.state_ready(), 8);
    barrier_init(ring.update_ready(), 8);
    barrier_init_fence();
  }
  cluster_sync();  // every block's barriers are there
  wait_for_predecessor();
  float* const states_of_head =
      state + static_cast<std::size_t>(head) * Shape::delta_head_dim * Shape::delta_head_dim;
  if (warp < 4) {
    delta::scan<true, value_heads>(ring, states_of_head, y, tokens, head, part);
  } else if (warp < 8) {
    delta::scan<false, value_heads>(ring, states_of_head, y, tokens, head, part);
  } else {
    if (threadIdx.x % 32 == 0)
      delta::copy_operands<key_heads, value_heads>(workspace, ring, delta_chunks(tokens), head, part);
    __syncwarp();
  }
  cluster_sync();  // no block arrives at the barriers of one that has ended
#else
  __trap();  // the build has code for sm_90, not for sm_90a
#endif
}

}  // namespace calla::cuda
