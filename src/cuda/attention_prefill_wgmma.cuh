// Second kernel of attention prefill on Hopper: causal attention with an online softmax, by warpgroups.
//
// A block has 16 tokens and the eight query heads of a KV head, two warpgroups with four heads each, 64 x 256
// accumulators; a third warpgroup copies tiles of 64 keys and of 64 values into a ring of two each. A
// warpgroup starts S = Q K^T of a tile and O += P V of the one before it together, and turns the first into
// exponentials while the second is computed. Q, K, V and P are bfloat16, everything else float; see
// attention_prefill_softmax.cuh. Bound: 0.55 TFLOP of matrix products for 8,192 tokens of the 35B; 4.3 GB of
// keys and values from the second-level cache.
#pragma once
#include <cstdint>

#include "cuda/attention_prefill_softmax.cuh"
#include "cuda/mixer_wgmma.cuh"
#include "cuda/wgmma.cuh"

namespace calla::cuda {

inline constexpr int attention_wgmma_threads = 384;

namespace attention {

inline constexpr int warpgroup = 128;
inline constexpr int tile_keys = 64;
inline constexpr int ring_tiles = 2;
inline constexpr int panel_bytes = 64 * 128;  // 64 rows of 64 columns
inline constexpr int tile_bytes = 4 * panel_bytes;

/// Where things lie in a block's shared memory.
struct Ring {
  std::uint32_t base;

  static constexpr int barriers_at = (2 + 2 * ring_tiles) * tile_bytes;
  static constexpr int bytes = barriers_at + (1 + 4 * ring_tiles) * 8;

  __device__ std::uint32_t queries(int of_warpgroup) const { return base + of_warpgroup * tile_bytes; }
  /// A tile of keys (values: 1); tile i lies where tile i - 2 lay.
  __device__ std::uint32_t tile(int index, int values) const {
    return base + (2 + values * ring_tiles + index % ring_tiles) * tile_bytes;
  }
  __device__ std::uint32_t queries_full() const { return base + barriers_at; }
  __device__ std::uint32_t full(int index, int values) const {
    return base + barriers_at + 8 * (1 + values * ring_tiles + index % ring_tiles);
  }
  __device__ std::uint32_t empty(int index, int values) const {
    return full(index, values) + 8 * 2 * ring_tiles;
  }
};
static_assert(Ring::bytes <= 232'448);

__device__ inline void wait_for(std::uint32_t barrier, int parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

/// The third warpgroup: the queries, then keys and values in the order in which they are used.
template <int heads, int kv_heads>
__device__ inline void produce(const AttentionPrefill& call, std::size_t layer_offset, const Ring& ring,
                               int first_token, int kv_head, int tiles) {
  constexpr int group = heads / kv_heads;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
  // A warp copies whole rows warp, warp + 4, ..., a lane a piece of 16 bytes.
  const std::uint32_t even = lane / 8 * panel_bytes + warp * 128 + ((lane % 8 ^ warp) << 4);
  const std::uint32_t odd = (even ^ 64) + 4 * 128;  // of the row four further

  const int tokens_here = min(tokens_a_block, call.tokens - first_token);
  const __half* const from_queries =
      call.y + (static_cast<std::size_t>(first_token) * heads + kv_head * group) * dim + 8 * lane;
#pragma unroll
  for (int i = 0; i < group * tokens_a_block / 4; ++i) {
    const int row = 4 * i;  // and the warp's number more
    const int token = row % tokens_a_block + warp;
    const bool present = token < tokens_here;
    const __half* const from = from_queries + (present ? (token * heads + row / tokens_a_block) * dim : 0);
    copy_async(ring.queries(row / 64) + (i % 2 == 0 ? even : odd) + row % 64 / 8 * 1024, from,
               present ? 16 : 0);
  }
  barrier_arrive_after_copies(ring.queries_full());

  const auto copy_tile = [&](int tile, int values) {
    const int first_key = tile * tile_keys;
    const int present = call.position + call.tokens - first_key - warp;
    const __nv_bfloat16* const from = call.pages[first_key / page_positions] + layer_offset +
                                      (kv_head * 2 + values) * page_positions * dim +
                                      (first_key % page_positions + warp) * dim + 8 * lane;
    const std::uint32_t to = ring.tile(tile, values);
    wait_for(ring.empty(tile, values), tile / ring_tiles % 2 ^ 1);
#pragma unroll
    for (int i = 0; i < tile_keys / 4; ++i)
      copy_async(to + (i % 2 == 0 ? even : odd) + i / 2 * 1024, from + 4 * i * dim, 4 * i < present ? 16 : 0);
    barrier_arrive_after_copies(ring.full(tile, values));
  };
  copy_tile(0, 0);
#pragma unroll 1
  for (int tile = 1; tile < tiles; ++tile) {
    copy_tile(tile, 0);
    copy_tile(tile - 1, 1);
  }
  copy_tile(tiles - 1, 1);
  copy_async_wait_all();
}

/// Starts S = Q K^T.
__device__ inline void start_scores(float (&s)[8][4], std::uint32_t queries, std::uint32_t keys) {
  const std::uint64_t a = describe_along_rows(queries);
  const std::uint64_t b = describe_along_rows(keys);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < dim / 16; ++step) {
    const int further = step / 4 * (panel_bytes / 16) + step % 4 * 2;
    wgmma_64x64(s, a + further, b + further, step > 0);
  }
  wgmma_commit();
}

/// Starts O += P V.
__device__ inline void start_outputs(float (&o)[32][4], const uint4 (&p)[4], std::uint32_t values) {
  const std::uint64_t b = describe_down_rows<panel_bytes>(values);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < tile_keys / 16; ++step) wgmma_64x256(o, p[step], b + step * 128);
  wgmma_commit();
}

/// One of the first two warpgroups.
template <int heads, int kv_heads>
__device__ inline void consume(const AttentionPrefill& call, const Ring& ring, int first_token, int kv_head,
                               int tiles) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int which = warp / 4;
  const std::uint32_t queries = ring.queries(which);
  float s[8][4];
  float o[32][4] = {};
  uint4 p[4];
  Softmax softmax;
  float shrink[2];
  const auto wait_for_tile = [&](int tile, int values) {
    wait_for(ring.full(tile, values), tile / ring_tiles % 2);
    fence_async_proxy();
  };
  const auto release_tile = [&](int tile, int values) {
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty(tile, values));
  };
  const auto absorb = [&](int tile) {
    const int last_visible = call.position + first_token - tile * tile_keys;  // of the first token
    if (last_visible < tile_keys - 1) mask<tile_keys>(s, last_visible + lane / 4, lane % 4);
    softmax.absorb<tile_keys>(s, shrink);
  };
  const auto round = [&] {
#pragma unroll
    for (int step = 0; step < 4; ++step) p[step] = fragment(s[2 * step], s[2 * step + 1]);
  };

  wait_for(ring.queries_full(), 0);
  wait_for_tile(0, 0);
  start_scores(s, queries, ring.tile(0, 0));
  wgmma_wait<0>();
  accumulators_arrived(s);
  release_tile(0, 0);
  absorb(0);
  round();
#pragma unroll 1
  for (int tile = 1; tile < tiles; ++tile) {
    wait_for_tile(tile, 0);
    start_scores(s, queries, ring.tile(tile, 0));
    wait_for_tile(tile - 1, 1);
    start_outputs(o, p, ring.tile(tile - 1, 1));
    wgmma_wait<1>();
    accumulators_arrived(s);
    release_tile(tile, 0);
    absorb(tile);
    wgmma_wait<0>();
    accumulators_arrived(o);
    release_tile(tile - 1, 1);
    rescale(o, shrink);
    round();
  }
  wait_for_tile(tiles - 1, 1);
  start_outputs(o, p, ring.tile(tiles - 1, 1));
  wgmma_wait<0>();
  accumulators_arrived(o);

  barrier_of_warps(1 + which, warpgroup);  // the queries have been read
  write_out<heads>(call, o, softmax, queries + warp % 4 * tokens_a_block * row_bytes, first_token,
                   kv_head * (heads / kv_heads) + warp, lane);
}

}  // namespace attention

template <int heads, int kv_heads>
__global__ __launch_bounds__(attention_wgmma_threads,
                             1) void attention_wgmma_kernel(AttentionPrefill call, std::size_t layer_offset) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(heads == 8 * kv_heads);
  alignas(1024) extern __shared__ uint4 shared_memory[];
  const attention::Ring ring = {shared_address(shared_memory)};
  const int kv_head = static_cast<int>(blockIdx.x);
  // The longest rows first.
  const int first_token = static_cast<int>(gridDim.y - 1 - blockIdx.y) * attention::tokens_a_block;
  const int last_token = min(first_token + attention::tokens_a_block, call.tokens) - 1;
  const int tiles = (call.position + last_token) / attention::tile_keys + 1;

  if (threadIdx.x == 0) {
    barrier_init(ring.queries_full(), attention::warpgroup);
    for (int values = 0; values < 2; ++values) {
      for (int tile = 0; tile < attention::ring_tiles; ++tile) {
        barrier_init(ring.full(tile, values), attention::warpgroup);
        barrier_init(ring.empty(tile, values), 2 * attention::warpgroup / 32);
      }
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_predecessor();
  if (threadIdx.x >= 2 * attention::warpgroup) {
    give_registers<24>();
    attention::produce<heads, kv_heads>(call, layer_offset, ring, first_token, kv_head, tiles);
  } else {
    take_registers<240>();
    attention::consume<heads, kv_heads>(call, ring, first_token, kv_head, tiles);
  }
#else
  __trap();  // the build has code for sm_90, not for sm_90a
#endif
}

}  // namespace calla::cuda
