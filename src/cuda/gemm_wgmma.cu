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
static_assert(token_bytes % 1024 == 0 && consumers * staged_rows == row_tile);

// Shared memory: tokens of all stages (each at a multiple of 1024), staging of the consumers, weights,
// barriers.
constexpr int staging_at = stages * token_bytes;
constexpr int weights_begin = staging_at + consumers * staging_bytes;
constexpr int barriers_at = weights_begin + stages * weight_bytes;
constexpr int shared_bytes = barriers_at + 2 * stages * 8 + 1024;  // the last for the alignment

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
};

__device__ inline void wait_for(std::uint32_t barrier, std::uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

/// Fills the ring for all tiles of this block.
__device__ void produce(const Product& p, const TileWalk<row_tile>& walk, const Ring& ring, int thread) {
  constexpr int rows_apart = warpgroup / 8;  // a thread copies the same piece of every 16th token
  constexpr int copies = token_tile / rows_apart;
  const int piece = thread % 8;
  const std::uint32_t to = piece_offset(thread / 8, piece);
  const auto columns = static_cast<std::size_t>(p.groups * tile_columns);
  Place place;
  for (int index = static_cast<int>(blockIdx.x); index < walk.count(); index += static_cast<int>(gridDim.x)) {
    const auto tile = walk.at(index);
    int from[copies];  // the row of x; offsets, as pointers would be twice the registers
#pragma unroll
    for (int i = 0; i < copies; ++i) {
      const int token = thread / 8 + rows_apart * i;
      from[i] = token < tile.tokens.count ? source_row(p, tile.tokens.first + token) : -1;
    }
    const __half* x = p.x + piece * 8;
    const int tiles = min(row_tile, p.rows - tile.row) / tile_rows;
    const std::byte* weights = weights_at(p, tile.tokens.expert, tile.row + thread % 16 * tile_rows, 0);
#pragma unroll 1
    for (int group = 0; group < p.groups; ++group) {
      wait_for(ring.empty(place.stage), place.parity ^ 1);
      const std::uint32_t full = ring.full(place.stage);
      if (thread < 32) {
        if (thread == 0) barrier_expect(full, static_cast<std::uint32_t>(tiles * tile_bytes));
        __syncwarp();
        if (thread < tiles)
          bulk_copy(ring.weights(place.stage) + static_cast<std::uint32_t>(thread * tile_bytes),
                    weights + static_cast<std::size_t>(group) * tile_bytes, tile_bytes, full);
      }
      const std::uint32_t tokens = ring.tokens(place.stage) + to;
#pragma unroll
      for (int i = 0; i < copies; ++i) {
        if (from[i] >= 0)
          copy16(tokens + static_cast<std::uint32_t>(i * rows_apart * token_row_bytes),
                 x + static_cast<std::size_t>(from[i]) * columns);
      }
      barrier_arrive_after_copies(full);
      x += tile_columns;
      place.advance();
    }
  }
}

using Sums = float[2][token_tile / 8][4];  // two times 64 rows of a warpgroup

/// Adds up a tile's products for the first n tokens.
template <int n>
__device__ inline void multiply(int groups, const Ring& ring, Place& place, int first_strip, int lane,
                                Sums& d) {
  std::uint32_t a[2][4][4];
  int previous = 0;
#pragma unroll 1
  for (int group = 0; group < groups; ++group) {
    wait_for(ring.full(place.stage), place.parity);
    fence_async_proxy();
    const std::uint64_t b = describe_rows128(ring.tokens(place.stage));
    const std::uint32_t weights =
        ring.weights(place.stage) + static_cast<std::uint32_t>(first_strip * tile_bytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // The product before last, which read these registers, has been waited for.
      unpack_tile(weights + static_cast<std::uint32_t>(i * 4 * tile_bytes), lane, a[i]);
      wgmma_fence();
#pragma unroll
      for (int h = 0; h < 4; ++h) wgmma<n>(d[i], a[i][h], b + static_cast<std::uint64_t>(2 * h));
      wgmma_commit();
      wgmma_wait<1>();
      if (i == 0 && group > 0 && lane == 0) barrier_arrive(ring.empty(previous));
    }
    previous = place.stage;
    place.advance();
  }
  wgmma_wait<0>();
  if (lane == 0) barrier_arrive(ring.empty(previous));
}

/// One tile, for one warpgroup of consumers.
template <Epilogue epilogue>
__device__ void consume(const Product& p, const TileWalk<row_tile>::Tile& tile, const Ring& ring,
                        Place& place, int group_of_warps, int thread) {
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int first_strip = group_of_warps * (staged_rows / tile_rows) + warp;
  Sums d = {};
  if (tile.tokens.count > 64) {
    multiply<128>(p.groups, ring, place, first_strip, lane, d);
  } else if (tile.tokens.count > 32) {
    multiply<64>(p.groups, ring, place, first_strip, lane, d);
  } else {
    multiply<32>(p.groups, ring, place, first_strip, lane, d);
  }

  const std::uint32_t staging =
      ring.base + static_cast<std::uint32_t>(staging_at + group_of_warps * staging_bytes);
  const int row = tile.row + group_of_warps * staged_rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < token_tile / 8; ++j) {
      // The sums are complete only here: their reads must not move up.
      asm volatile("" : "+f"(d[i][j][0]), "+f"(d[i][j][1]), "+f"(d[i][j][2]), "+f"(d[i][j][3])::"memory");
    }
    const int strip = i * 4 + warp;
    finish<epilogue>(p, d[i], tile.tokens, row + strip * tile_rows, strip, 0, staging, lane);
  }
  if constexpr (epilogue != Epilogue::add) {
    sync_threads(1 + group_of_warps, warpgroup);
    drain<epilogue>(p, tile.tokens, row, staging, thread, warpgroup);
    sync_threads(1 + group_of_warps, warpgroup);
  }
}

template <Epilogue epilogue>
__global__ void __launch_bounds__(threads, 1) product_kernel(const __grid_constant__ Product p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::byte memory[];
  const Ring ring{(shared_address(memory) + 1023U) & ~1023U};
  const int thread = static_cast<int>(threadIdx.x) % warpgroup;
  const int role = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / warpgroup, 0);  // the same in a warp
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(ring.full(stage), warpgroup + 1);  // every producer's copies, and the bulk copies
      barrier_init(ring.empty(stage), consumers * warpgroup / 32);  // every consumer warp
    }
    barrier_init_fence();
  }
  __syncthreads();

  const TileWalk<row_tile> walk(p);
  if (role == consumers) {
    give_registers<56>();
    produce(p, walk, ring, thread);
    return;
  }
  take_registers<224>();
  Place place;
  int index = static_cast<int>(blockIdx.x);
  if (index >= walk.count()) return;
  auto next = walk.at(index);
  while (index < walk.count()) {
    const auto tile = next;
    index += static_cast<int>(gridDim.x);
    if (index < walk.count()) next = walk.at(index);  // long before it is needed
    consume<epilogue>(p, tile, ring, place, role, thread);
  }
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
