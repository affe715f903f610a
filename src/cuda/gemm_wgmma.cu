// Products with Hopper's wgmma.
//
// Y[t][r] = sum over k of W[r][k] X[t][k]: a block has 256 or 128 rows of weights x up to 128 tokens and
// walks over the tiles. Weights are A, from registers, where codes become half; tokens are B, in shared
// memory. A warpgroup of producers gathers tokens, 16 bytes a copy, and weights, a step's by one copy of the
// tensor engine, into a ring of steps of one group of 64; two warpgroups of consumers have half of the rows
// each, as products of 64. With many tokens one warpgroup unpacks codes while the tensor cores multiply for
// the other; with few, each unpacks the next step's itself meanwhile. Their epilogues are their own affair,
// so that one's overlaps with the other's products. Bytes: 9.2 KB of weights and 16 KB of tokens a step for
// 4.2 MFLOP; bound by the tensor cores, where few tokens meet many experts by memory and unpacking, and where
// there are few tiles by the way through one: so a matrix and few tokens are cut into smaller ones.
#include <algorithm>
#include <type_traits>

#include <cuda.h>

#include "cuda/device.h"
#include "cuda/gemm_epilogue.cuh"
#include "cuda/host/tile_shape.h"
#include "cuda/wgmma.cuh"

namespace calla::cuda {
namespace {

constexpr int warpgroup = 128;
constexpr int consumers = 2;
constexpr int threads = (1 + consumers) * warpgroup;
constexpr int product_rows = 64;
constexpr int stages = 6;
constexpr int token_bytes = token_tile * token_row_bytes;
static_assert(sizeof(Tile) == 16 && token_bytes % 1024 == 0);

/// Rows of a tile when a consumer has `products` times 64 of them, and where things lie in shared memory:
/// tokens of all stages (each at a multiple of 1024), staging of the consumers, weights, barriers.
template <int products>
struct Layout {
  static constexpr int consumer_rows = products * product_rows;
  static constexpr int row_tile = consumers * consumer_rows;
  static constexpr int weight_bytes = row_tile / tile_rows * tile_bytes;
  static constexpr int staging_at = stages * token_bytes;
  static constexpr int weights_begin = staging_at + consumers * staging_bytes;
  static constexpr int barriers_at = weights_begin + stages * weight_bytes;
  static constexpr int tiles_at = barriers_at + 2 * stages * 8;
  static constexpr int shared_bytes = tiles_at + (stages + 1) * 16 + 1024;  // the last for the alignment
  static_assert(consumer_rows <= staged_rows);
};

constexpr int tile_words = tile_bytes / 4;

/// A product, and its weights as the tensor copy engine sees them: [strips of 16 rows, of all
/// experts][groups] tiles.
struct HopperProduct : Product {
  CUtensorMap map;
};

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

template <class L>
struct Ring {
  std::uint32_t base;

  __device__ std::uint32_t tokens(int stage) const {
    return base + static_cast<std::uint32_t>(stage * token_bytes);
  }
  __device__ std::uint32_t weights(int stage) const {
    return base + static_cast<std::uint32_t>(L::weights_begin + stage * L::weight_bytes);
  }
  __device__ std::uint32_t full(int stage) const {
    return base + static_cast<std::uint32_t>(L::barriers_at + stage * 8);
  }
  __device__ std::uint32_t empty(int stage) const { return full(stage + stages); }
  /// The tile that begins in a stage, and the one that the producers turn to next.
  __device__ std::uint32_t tile(int stage) const {
    return base + static_cast<std::uint32_t>(L::tiles_at + stage * 16);
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

/// Brings the part of the residual that a tile is added to into the second-level cache.
template <int row_tile>
__device__ inline void prefetch_residual(const HopperProduct& p, const Tile& tile, int thread) {
  constexpr int lines = row_tile * 4 / 128;
  const int row = tile.row + thread % lines * 32;
  if (row >= p.rows) return;
  for (int token = thread / lines; token < tile.count; token += warpgroup / lines)
    prefetch_line(p.residual + static_cast<std::size_t>(tile.first + token) * p.rows + row);
}

/// Fills the ring for all tiles of this block.
template <Epilogue epilogue, class L>
__device__ void produce(const HopperProduct& p, const Ring<L>& ring, int thread) {
  constexpr int row_tile = L::row_tile;
  constexpr int rows_apart = warpgroup / 8;  // a thread copies the same piece of every 16th token
  constexpr int token_copies = token_tile / rows_apart;
  const int piece = thread % 8;
  const std::uint32_t to = piece_offset(thread / 8, piece);
  const int row_pieces = p.groups * (tile_columns / 8);
  const int blocks = static_cast<int>(gridDim.x);
  int index = static_cast<int>(blockIdx.x);
  Place place;
  Tile tile = tile_at<row_tile>(p, index);
  while (tile.count > 0) {
    // The next tile: the one after as many as there are blocks, or the first that no block has taken; thread
    // 0 asks early.
    Tile next{};
    if (p.queue != nullptr && thread == 0) next = tile_at<row_tile>(p, blocks + atomicAdd(p.queue, 1));

    // Offsets in pieces, as pointers would be twice the registers; -1: not there.
    int from[token_copies];
#pragma unroll
    for (int i = 0; i < token_copies; ++i) {
      const int token = thread / 8 + rows_apart * i;
      from[i] = token < tile.count ? source_row(p, tile.first + token) * row_pieces : -1;
    }
    const int strip = (tile.expert * p.rows + tile.row) / tile_rows;
    const auto* x = reinterpret_cast<const uint4*>(p.x) + piece;
    wait_for(ring.empty(place.stage), place.parity ^ 1);
    if (thread == 0) store_description(ring.tile(place.stage), tile);
#pragma unroll 1
    for (int group = 0; group < p.groups; ++group) {
      wait_for(ring.empty(place.stage), place.parity ^ 1);
      if (thread == 0) {
        // After the description, which the arrival makes visible.
        barrier_expect(ring.full(place.stage), L::weight_bytes);
        tensor_copy(ring.weights(place.stage), p.map, group * tile_words, strip, ring.full(place.stage));
      }
      const std::uint32_t tokens = ring.tokens(place.stage) + to;
      const auto copy_tokens = [&](auto copies) {
#pragma unroll
        for (int i = 0; i < copies(); ++i) {
          if (from[i] >= 0)
            copy16(tokens + static_cast<std::uint32_t>(i * rows_apart * token_row_bytes), x + from[i]);
        }
      };
      // Not a branch a copy: they shall follow each other closely.
      constexpr int few = 2;
      if (tile.count <= few * rows_apart) {
        copy_tokens(std::integral_constant<int, few>());
      } else {
        copy_tokens(std::integral_constant<int, token_copies>());
      }
      barrier_arrive_after_copies(ring.full(place.stage));
      if (epilogue == Epilogue::add && group == p.groups / 2) prefetch_residual<row_tile>(p, tile, thread);
      x += tile_columns / 8;
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

template <int products>
using Sums = float[products][token_tile / 8][4];  // of a warpgroup's rows

/// What a consumer does again and again: its rows of the group at hand become operands, and are multiplied.
template <class L, int products>
struct Consumer {
  const Ring<L>& ring;
  int first_strip;
  int lane;
  TileWords words[products];

  using Operands = std::uint32_t[products][4][4];

  __device__ void load(int stage) {
    fence_async_proxy();
    const std::uint32_t at = ring.weights(stage) + static_cast<std::uint32_t>(first_strip * tile_bytes);
#pragma unroll
    for (int i = 0; i < products; ++i)
      words[i] =
          load_tile(at + static_cast<std::uint32_t>(i * (product_rows / tile_rows) * tile_bytes), lane);
  }
  __device__ void unpack(Operands& a) const {
#pragma unroll
    for (int i = 0; i < products; ++i) unpack_tile(words[i], a[i]);
  }
  /// Starts the products of the first n tokens.
  template <int n>
  __device__ void multiply(const Operands& a, int stage, Sums<products>& d) const {
    const std::uint64_t b = describe_rows128(ring.tokens(stage));
    wgmma_fence();
#pragma unroll
    for (int h = 0; h < 4; ++h) {
#pragma unroll
      for (int i = 0; i < products; ++i) wgmma<n>(d[i], a[i][h], b + static_cast<std::uint64_t>(2 * h));
    }
    wgmma_commit();
  }
  __device__ void release(int stage) const {
    wgmma_wait<0>();
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty(stage));
  }
};

/// Sums are read only after what was done before.
template <int n, int products>
__device__ inline void keep_in_order(Sums<products>& d) {
#pragma unroll
  for (int i = 0; i < products; ++i) {
#pragma unroll
    for (int j = 0; j < n / 8; ++j)
      asm volatile("" : "+f"(d[i][j][0]), "+f"(d[i][j][1]), "+f"(d[i][j][2]), "+f"(d[i][j][3])::"memory");
  }
}

/// Adds up a tile's products for the first n tokens. The first stage is full.
template <int n, class L, int products>
__device__ inline void multiply(int groups, Consumer<L, products>& consumer, Place& place,
                                Sums<products>& d) {
  using Operands = typename Consumer<L, products>::Operands;
  const Ring<L>& ring = consumer.ring;
  // With few sums there are registers for the operands of two groups.
  constexpr bool ahead = n * products <= 128;
  Operands a[ahead ? 2 : 1];
  const auto step = [&](Operands& now, Operands& next, bool is_last) {
    if (!ahead) consumer.unpack(now);
    const int stage = place.stage;
    consumer.template multiply<n>(now, stage, d);
    place.advance();
    if (!is_last) {
      wait_for(ring.full(place.stage), place.parity);
      consumer.load(place.stage);
      if (ahead) consumer.unpack(next);
    }
    consumer.release(stage);
    if (ahead) keep_in_order<n>(d);
  };
  consumer.load(place.stage);
  if constexpr (ahead) {
    consumer.unpack(a[0]);
#pragma unroll 1
    for (int group = 0; group < groups; group += 2) {
      step(a[0], a[1], group + 1 == groups);
      if (group + 1 < groups) step(a[1], a[0], group + 2 == groups);
    }
  } else {
#pragma unroll 1
    for (int group = 0; group < groups; ++group) step(a[0], a[0], group + 1 == groups);
    keep_in_order<n>(d);
  }
}

/// One tile, for one warpgroup of consumers. The first stage is full.
template <Epilogue epilogue, class L, int products>
__device__ inline void consume(const HopperProduct& p, const Tile& tile, const Ring<L>& ring, Place& place,
                               int group_of_warps, int thread) {
  const int lane = thread % 32;
  const int warp = thread / 32;
  constexpr int strips = product_rows / tile_rows;
  const int first_strip = group_of_warps * products * strips + warp;
  const std::uint32_t staging =
      ring.base + static_cast<std::uint32_t>(L::staging_at + group_of_warps * staging_bytes);
  const int row = tile.row + group_of_warps * L::consumer_rows;
  const auto sync = [&] { sync_threads(consumer_barrier + group_of_warps, warpgroup); };
  Consumer<L, products> consumer{ring, first_strip, lane, {}};
  Sums<products> d = {};
  const auto finish_up_to = [&](auto n) {
    multiply<n()>(p.groups, consumer, place, d);
    if constexpr (epilogue != Epilogue::add) {
#pragma unroll
      for (int i = 0; i < products; ++i) {
        const int strip = i * strips + warp;
        finish<epilogue, std::max(n() / 8, 4)>(p, d[i], tile, row + strip * tile_rows, strip, 0, staging,
                                               lane);
      }
    }
  };
  if (tile.count <= 8) {
    finish_up_to(std::integral_constant<int, 8>());
  } else if (tile.count <= 16) {
    finish_up_to(std::integral_constant<int, 16>());
  } else if (tile.count > 96) {
    finish_up_to(std::integral_constant<int, 128>());
  } else if (tile.count > 64) {
    finish_up_to(std::integral_constant<int, 96>());
  } else if (tile.count > 32) {
    finish_up_to(std::integral_constant<int, 64>());
  } else {
    finish_up_to(std::integral_constant<int, 32>());
  }

  if constexpr (epilogue == Epilogue::add) {
#pragma unroll
    for (int i = 0; i < products; ++i)
      stage_sums<0, added_tokens / 8>(d[i], i * strips + warp, staging, lane);
    sync();
    add_staged<L::consumer_rows>(p, tile, row, 0, staging, thread, warpgroup);
    sync();
    if (tile.count <= added_tokens) return;
#pragma unroll
    for (int i = 0; i < products; ++i)
      stage_sums<added_tokens / 8, added_tokens / 8>(d[i], i * strips + warp, staging, lane);
    sync();
    add_staged<L::consumer_rows>(p, tile, row, added_tokens, staging, thread, warpgroup);
    sync();
  } else {
    sync();
    drain<epilogue, L::consumer_rows>(p, tile, row, staging, thread, warpgroup);
    sync();
  }
}

#endif

template <Epilogue epilogue, int products>
__global__ void __launch_bounds__(threads, 1) product_kernel(const __grid_constant__ HopperProduct p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using L = Layout<products>;
  extern __shared__ std::byte memory[];
  const Ring<L> ring{(shared_address(memory) + 1023U) & ~1023U};
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
    produce<epilogue, L>(p, ring, thread);
    return;
  }
  take_registers<224>();
  Place place;
  while (true) {
    wait_for(ring.full(place.stage), place.parity);
    const Tile tile = load_description(ring.tile(place.stage));
    if (tile.count == 0) break;
    consume<epilogue, L, products>(p, tile, ring, place, role, thread);
  }
#else
  __trap();  // the build has code for sm_90, not for sm_90a
#endif
}

/// The weights in boxes of a group of `rows` rows. Behind a matrix's last row comes the next matrix or,
/// behind the last, zero: sums that nobody takes.
CUtensorMap map_weights(const Product& product, int rows) {
  // Of the driver, which the program is not linked with: it may not be there.
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    constexpr unsigned since = 12000;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, since, cudaEnableDefault,
                                           &found),
          "asking the driver");
    check(found == cudaDriverEntryPointSuccess ? cudaSuccess : cudaErrorSymbolNotFound, "asking the driver");
    return reinterpret_cast<Encode>(function);
  }();
  const cuuint64_t strips = static_cast<cuuint64_t>(product.matrices) * product.rows / tile_rows;
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(product.groups) * tile_words, strips};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(product.groups) * tile_bytes};
  const cuuint32_t box[2] = {tile_words, static_cast<cuuint32_t>(rows / tile_rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, const_cast<std::byte*>(product.weights), extents,
             stride, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(status == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue, "describing weights");
  return map;
}

/// Launches a product that is cut into `product.token_share` tokens.
template <Epilogue epilogue, int products>
void launch(const Product& product, int processors, cudaStream_t stream) {
  const auto kernel = product_kernel<epilogue, products>;
  constexpr int shared_bytes = Layout<products>::shared_bytes;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "asking for shared memory");
  const HopperProduct with_map{product, map_weights(product, Layout<products>::row_tile)};
  kernel<<<static_cast<unsigned>(processors), threads, shared_bytes, stream>>>(with_map);
  check(cudaGetLastError(), "launching a product");
}

}  // namespace

template <Epilogue epilogue>
void launch_wgmma(Product product, cudaStream_t stream) {
  int device = 0;
  int processors = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "counting processors");
  const TileShape shape =
      product.tiles != nullptr ? largest_tile : tile_shape(product.rows, product.tokens, processors);
  product.token_share = tokens_of_tile(product.tokens, shape.tokens);
  if (shape.rows == Layout<2>::row_tile) return launch<epilogue, 2>(product, processors, stream);
  launch<epilogue, 1>(product, processors, stream);
}

template void launch_wgmma<Epilogue::store>(Product, cudaStream_t);
template void launch_wgmma<Epilogue::add>(Product, cudaStream_t);
template void launch_wgmma<Epilogue::swiglu>(Product, cudaStream_t);

}  // namespace calla::cuda
