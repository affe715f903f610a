// Products with Hopper's wgmma.
//
// Y[t][r] = sum over k of W[r][k] X[t][k]: a block has 256 rows of weights x 128 tokens and walks over the
// tiles. Weights are A, from registers, where codes become half; tokens are B, in shared memory. A warpgroup
// of producers gathers tokens (16-byte copies) and weights (bulk copies) into a ring of steps of one group of
// 64; two warpgroups of consumers have 128 rows each, as two products of 64: while the tensor cores do one,
// the codes of the other are unpacked. Their epilogues are their own affair, so that one's overlaps with the
// other's products.
// Bytes: 9.2 KB of weights and 16 KB of tokens a step for 4.2 MFLOP; bound by the tensor cores, and by memory
// where few tokens meet many experts.
#include "cuda/device.h"
#include "cuda/gemm_epilogue.cuh"
#include "cuda/wgmma.cuh"

namespace calla::cuda {
namespace {

constexpr int row_tile = 256;
constexpr int warpgroup = 128;
constexpr int consumers = 2;
constexpr int threads = (1 + consumers) * warpgroup;
constexpr int stages = 6;
constexpr int token_bytes = token_tile * token_row_bytes;
constexpr int weight_bytes = row_tile / tile_rows * tile_bytes;
static_assert(sizeof(Tile) == 16 && token_bytes % 1024 == 0 && consumers * staged_rows == row_tile);

// Shared memory: tokens of all stages (each at a multiple of 1024), staging of the consumers, weights,
// barriers.
constexpr int staging_at = stages * token_bytes;
constexpr int weights_begin = staging_at + consumers * staging_bytes;
constexpr int barriers_at = weights_begin + stages * weight_bytes;
constexpr int tiles_at = barriers_at + 2 * stages * 8;
constexpr int shared_bytes = tiles_at + (stages + 1) * 16 + 1024;  // the last for the alignment

#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // the rest of these only where the kernel has a body

// Named barriers.
constexpr int consumer_barrier = 1;  // and the next one
constexpr int producer_barrier = consumer_barrier + consumers;

/// A place in the ring: a stage, and the parity of the round.
struct Place {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct Ring {
  std::uint32_t base;

  __device__ std::uint32_t tokens(int stage) const {
    return base + static_cast<std::uint32_t>(stage * token_bytes);
  }
  __device__ std::uint32_t weights(int stage) const {
    return base + static_cast<std::uint32_t>(weights_begin + stage * weight_bytes);
  }
  __device__ std::uint32_t full(int stage) const {
    return base + static_cast<std::uint32_t>(barriers_at + stage * 8);
  }
  __device__ std::uint32_t empty(int stage) const { return full(stage + stages); }
  /// The tile that begins in a stage, and the one that the producers turn to next.
  __device__ std::uint32_t tile(int stage) const {
    return base + static_cast<std::uint32_t>(tiles_at + stage * 16);
  }
  __device__ std::uint32_t next() const { return tile(stages); }
};

__device__ inline void wait_for(std::uint32_t barrier, std::uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

__device__ inline void store_description(std::uint32_t to, const Tile& tile) {
  store_shared16(to, make_int4(tile.first, tile.count, tile.row, tile.expert));
}
__device__ inline Tile load_description(std::uint32_t from) {
  const uint4 v = load_shared(from);
  return {.first = static_cast<int>(v.x),
          .count = static_cast<int>(v.y),
          .row = static_cast<int>(v.z),
          .expert = static_cast<int>(v.w)};
}

/// Brings a tile's weights into the second-level cache: a strip of 16 rows for each of the first lanes.
__device__ inline void prefetch_weights(const Product& p, const Tile& tile, int lane) {
  const int row = tile.row + lane * tile_rows;
  if (tile.count > 0 && lane < row_tile / tile_rows && row < p.rows)
    prefetch_bulk(weights_at(p, tile.expert, row, 0), static_cast<std::uint32_t>(p.groups * tile_bytes));
}

/// The same for the part of the residual that a tile is added to.
__device__ inline void prefetch_residual(const Product& p, const Tile& tile, int thread) {
  constexpr int lines = row_tile * 4 / 128;
  const int row = tile.row + thread % lines * 32;
  if (row >= p.rows) return;
  for (int token = thread / lines; token < tile.count; token += warpgroup / lines)
    prefetch_line(p.residual + static_cast<std::size_t>(tile.first + token) * p.rows + row);
}

/// Fills the ring for all tiles of this block.
template <Epilogue epilogue>
__device__ void produce(const Product& p, const Ring& ring, int thread) {
  constexpr int rows_apart = warpgroup / 8;  // a thread copies the same piece of every 16th token
  constexpr int token_copies = token_tile / rows_apart;
  constexpr int tile_pieces = tile_bytes / 16;
  constexpr int weight_copies = (weight_bytes / 16 + warpgroup - 1) / warpgroup;
  const int piece = thread % 8;
  const std::uint32_t to = piece_offset(thread / 8, piece);
  const int row_pieces = p.groups * (tile_columns / 8);
  const int blocks = static_cast<int>(gridDim.x);
  int index = static_cast<int>(blockIdx.x);
  Place place;
  Tile tile = tile_at<row_tile>(p, index);
  if (thread < 32) prefetch_weights(p, tile, thread);
  while (tile.count > 0) {
    // The next tile: the one after as many as there are blocks, or the first that no block has taken; thread
    // 0 asks early.
    Tile next{};
    if (p.queue != nullptr && thread == 0) next = tile_at<row_tile>(p, blocks + atomicAdd(p.queue, 1));

    // Offsets in pieces and in bytes, as pointers would be twice the registers; -1: not there.
    int from[token_copies];
#pragma unroll
    for (int i = 0; i < token_copies; ++i) {
      const int token = thread / 8 + rows_apart * i;
      from[i] = token < tile.count ? source_row(p, tile.first + token) * row_pieces : -1;
    }
    int codes[weight_copies];
#pragma unroll
    for (int i = 0; i < weight_copies; ++i) {
      const int at = thread + i * warpgroup;
      const int strip = at / tile_pieces;
      const bool inside = at < weight_bytes / 16 && tile.row + strip * tile_rows < p.rows;
      codes[i] = inside ? strip * p.groups * tile_bytes + at % tile_pieces * 16 : -1;
    }
    const auto* x = reinterpret_cast<const uint4*>(p.x) + piece;
    const std::byte* weights = weights_at(p, tile.expert, tile.row, 0);
    wait_for(ring.empty(place.stage), place.parity ^ 1);
    if (thread == 0) store_description(ring.tile(place.stage), tile);
#pragma unroll 1
    for (int group = 0; group < p.groups; ++group) {
      wait_for(ring.empty(place.stage), place.parity ^ 1);
#pragma unroll
      for (int i = 0; i < weight_copies; ++i) {
        if (codes[i] >= 0)
          copy16(ring.weights(place.stage) + static_cast<std::uint32_t>((thread + i * warpgroup) * 16),
                 weights + codes[i]);
      }
      const std::uint32_t tokens = ring.tokens(place.stage) + to;
#pragma unroll
      for (int i = 0; i < token_copies; ++i) {
        if (from[i] >= 0)
          copy16(tokens + static_cast<std::uint32_t>(i * rows_apart * token_row_bytes), x + from[i]);
      }
      barrier_arrive_after_copies(ring.full(place.stage));
      if (thread == 0)
        barrier_arrive(ring.full(place.stage));  // after the description, which it makes visible
      if (epilogue == Epilogue::add && group == p.groups / 2) prefetch_residual(p, tile, thread);
      x += tile_columns / 8;
      weights += tile_bytes;
      place.advance();
    }

    if (p.queue == nullptr) {
      index += blocks;
      next = tile_at<row_tile>(p, index);
    } else {
      if (thread == 0) store_description(ring.next(), next);
      sync_threads(producer_barrier, warpgroup);
      next = load_description(ring.next());
      sync_threads(producer_barrier, warpgroup);
    }
    tile = next;
    if (thread < 32) prefetch_weights(p, tile, thread);
  }

  // Behind the last tile: one without tokens.
  wait_for(ring.empty(place.stage), place.parity ^ 1);
  barrier_arrive_after_copies(ring.full(place.stage));
  if (thread == 0) {
    store_description(ring.tile(place.stage), tile);
    barrier_arrive(ring.full(place.stage));
    // The last block to end leaves the counters as they were.
    if (p.queue != nullptr &&
        atomicInc(reinterpret_cast<unsigned*>(p.queue + 1), gridDim.x - 1) == gridDim.x - 1)
      atomicExch(p.queue, 0);
  }
}

using Sums = float[2][token_tile / 8][4];  // two times 64 rows of a warpgroup

/// Adds up a tile's products for the first n tokens. The first stage is full.
template <int n>
__device__ inline void multiply(int groups, const Ring& ring, Place& place, int first_strip, int lane,
                                Sums& d) {
  std::uint32_t a[2][4][4];
  TileWords words[2];
  const auto load_words = [&] {
    const std::uint32_t at = ring.weights(place.stage) + static_cast<std::uint32_t>(first_strip * tile_bytes);
    words[0] = load_tile(at, lane);
    words[1] = load_tile(at + 4 * tile_bytes, lane);
  };
  fence_async_proxy();
  load_words();
#pragma unroll 1
  for (int group = 0; group < groups; ++group) {
    const int stage = place.stage;
    const std::uint64_t b = describe_rows128(ring.tokens(stage));
    unpack_tile(words[0], a[0]);
    unpack_tile(words[1], a[1]);
    wgmma_fence();
#pragma unroll
    for (int h = 0; h < 4; ++h) {
#pragma unroll
      for (int i = 0; i < 2; ++i) wgmma<n>(d[i], a[i][h], b + static_cast<std::uint64_t>(2 * h));
    }
    wgmma_commit();
    place.advance();
    if (group + 1 < groups) {
      wait_for(ring.full(place.stage), place.parity);
      fence_async_proxy();
      load_words();
    }
    wgmma_wait<0>();
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty(stage));
  }
}

/// One tile, for one warpgroup of consumers. The first stage is full.
template <Epilogue epilogue>
__device__ inline void consume(const Product& p, const Tile& tile, const Ring& ring, Place& place,
                               int group_of_warps, int thread) {
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int first_strip = group_of_warps * (staged_rows / tile_rows) + warp;
  Sums d = {};
  if (tile.count > 96) {
    multiply<128>(p.groups, ring, place, first_strip, lane, d);
  } else if (tile.count > 64) {
    multiply<96>(p.groups, ring, place, first_strip, lane, d);
  } else if (tile.count > 32) {
    multiply<64>(p.groups, ring, place, first_strip, lane, d);
  } else {
    multiply<32>(p.groups, ring, place, first_strip, lane, d);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < token_tile / 8; ++j) {
      // The sums are complete only here: their reads must not move up.
      asm volatile("" : "+f"(d[i][j][0]), "+f"(d[i][j][1]), "+f"(d[i][j][2]), "+f"(d[i][j][3])::"memory");
    }
  }

  const std::uint32_t staging =
      ring.base + static_cast<std::uint32_t>(staging_at + group_of_warps * staging_bytes);
  const int row = tile.row + group_of_warps * staged_rows;
  const auto sync = [&] { sync_threads(consumer_barrier + group_of_warps, warpgroup); };
  if constexpr (epilogue == Epilogue::add) {
    stage_sums<0>(d[0], warp, staging, lane);
    stage_sums<0>(d[1], warp + 4, staging, lane);
    sync();
    add_staged(p, tile, row, 0, staging, thread, warpgroup);
    sync();
    if (tile.count <= added_tokens) return;
    stage_sums<added_tokens / 8>(d[0], warp, staging, lane);
    stage_sums<added_tokens / 8>(d[1], warp + 4, staging, lane);
    sync();
    add_staged(p, tile, row, added_tokens, staging, thread, warpgroup);
    sync();
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int strip = i * 4 + warp;
      finish<epilogue>(p, d[i], tile, row + strip * tile_rows, strip, 0, staging, lane);
    }
    sync();
    drain<epilogue>(p, tile, row, staging, thread, warpgroup);
    sync();
  }
}

#endif

template <Epilogue epilogue>
__global__ void __launch_bounds__(threads, 1) product_kernel(const __grid_constant__ Product p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::byte memory[];
  const Ring ring{(shared_address(memory) + 1023U) & ~1023U};
  const int thread = static_cast<int>(threadIdx.x) % warpgroup;
  const int role = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / warpgroup, 0);  // the same in a warp
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(ring.full(stage), warpgroup + 1);  // every producer's copies, and the tile's description
      barrier_init(ring.empty(stage), consumers * warpgroup / 32);  // every consumer warp
    }
    barrier_init_fence();
  }
  __syncthreads();

  if (role == consumers) {
    give_registers<56>();
    produce<epilogue>(p, ring, thread);
    return;
  }
  take_registers<224>();
  Place place;
  while (true) {
    wait_for(ring.full(place.stage), place.parity);
    const Tile tile = load_description(ring.tile(place.stage));
    if (tile.count == 0) break;
    consume<epilogue>(p, tile, ring, place, role, thread);
  }
#else
  __trap();  // the build has code for sm_90, not for sm_90a
#endif
}

}  // namespace

template <Epilogue epilogue>
void launch_wgmma(const Product& product, cudaStream_t stream) {
  const auto kernel = product_kernel<epilogue>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "asking for shared memory");
  int device = 0;
  int processors = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "counting processors");
  kernel<<<static_cast<unsigned>(processors), threads, shared_bytes, stream>>>(product);
  check(cudaGetLastError(), "launching a product");
}

template void launch_wgmma<Epilogue::store>(const Product&, cudaStream_t);
template void launch_wgmma<Epilogue::add>(const Product&, cudaStream_t);
template void launch_wgmma<Epilogue::swiglu>(const Product&, cudaStream_t);

}  // namespace calla::cuda
