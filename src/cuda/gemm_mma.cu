// Products with mma.sync, for GPUs from sm_80 on that are not Hopper's.
//
// Y[t][r] = sum over k of W[r][k] X[t][k]: a block has 128 rows of weights (A) x 128 tokens (B), k in steps
// of a group of 64 through four stages of asynchronous copies. Eight warps, each 32 rows x 64 tokens; codes
// become half in registers. Shared memory: 83 KB, which every GPU from sm_80 on has. Bytes: 4.6 KB of weights
// and 16 KB of tokens a step for 2.1 MFLOP. Bound by the issue of mma.sync.
#include "cuda/device.h"
#include "cuda/gemm_epilogue.cuh"

namespace calla::cuda {
namespace {

constexpr int row_tile = 128;
constexpr int threads = 256;
constexpr int stages = 4;
constexpr int token_bytes = token_tile * token_row_bytes;
constexpr int weight_bytes = row_tile / tile_rows * tile_bytes;
constexpr int stage_bytes = token_bytes + weight_bytes;
static_assert(stage_bytes % 128 == 0 && staging_bytes <= stages * stage_bytes);

/// Where the 16 x 64 tile of a row, a multiple of 16, and a group begins.
__device__ const std::byte* weights_at(const Product& p, int expert, int row, int group) {
  const std::size_t tile = static_cast<std::size_t>(row / tile_rows) * static_cast<std::size_t>(p.groups) +
                           static_cast<std::size_t>(group);
  return p.weights + static_cast<std::size_t>(expert) * p.expert_bytes + tile * tile_bytes;
}

/// Copies a step's tokens and weights into a stage.
__device__ void load_stage(const Product& p, const Tile& tile, const __half* const (&rows)[4], int group,
                           std::uint32_t stage) {
  const int thread = static_cast<int>(threadIdx.x);
  const int piece = thread % 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (rows[i] != nullptr)
      copy16(stage + piece_offset(thread / 8 + 32 * i, piece), rows[i] + group * tile_columns + piece * 8);
  }
  constexpr int pieces = tile_bytes / 16;
  for (int i = thread; i < weight_bytes / 16; i += threads) {
    const int row = tile.row + i / pieces * tile_rows;
    if (row < p.rows) {
      copy16(stage + static_cast<std::uint32_t>(token_bytes + i * 16),
             weights_at(p, tile.expert, row, group) + i % pieces * 16);
    }
  }
}

template <Epilogue epilogue>
__global__ void __launch_bounds__(threads) product_kernel(const Product p) {
  extern __shared__ __align__(128) std::byte memory[];
  const std::uint32_t base = shared_address(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int strip = thread / 32 % 4 * 2;      // this warp's first 16 of the 128 rows
  const int first_token = thread / 128 * 64;  // and its 64 tokens
  const auto columns = static_cast<std::size_t>(p.groups * tile_columns);

  for (int index = static_cast<int>(blockIdx.x);; index += static_cast<int>(gridDim.x)) {
    const Tile tile = tile_at<row_tile>(p, index);
    if (tile.count == 0) break;
    const __half* rows[4];
    for (int i = 0; i < 4; ++i) {
      const int token = thread / 8 + 32 * i;
      rows[i] = token < tile.count
                    ? p.x + static_cast<std::size_t>(source_row(p, tile.first + token)) * columns
                    : nullptr;
    }
    for (int group = 0; group < stages - 1; ++group) {
      if (group < p.groups)
        load_stage(p, tile, rows, group, base + static_cast<std::uint32_t>(group * stage_bytes));
      commit_copies();
    }

    float d[2][8][4] = {};
    for (int group = 0; group < p.groups; ++group) {
      wait_for_copies<stages - 2>();
      __syncthreads();  // the stage is complete, and the one before it has been read
      const int next = group + stages - 1;
      if (next < p.groups)
        load_stage(p, tile, rows, next, base + static_cast<std::uint32_t>(next % stages * stage_bytes));
      commit_copies();

      const std::uint32_t tokens = base + static_cast<std::uint32_t>(group % stages * stage_bytes);
      std::uint32_t a[2][4][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        unpack_tile(
            load_tile(tokens + static_cast<std::uint32_t>(token_bytes + (strip + i) * tile_bytes), lane),
            a[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int token = first_token + 16 * j;
        if (token >= tile.count) break;
#pragma unroll
        for (int h = 0; h < 4; ++h) {
          const uint4 b =
              load_matrices(tokens + piece_offset(token + lane / 16 * 8 + lane % 8, 2 * h + lane / 8 % 2));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            mma_16816(d[i][2 * j], a[i][h], b.x, b.y);
            mma_16816(d[i][2 * j + 1], a[i][h], b.z, b.w);
          }
        }
      }
    }
    wait_for_copies<0>();
    __syncthreads();

    if constexpr (epilogue == Epilogue::add) {
      for (int token = 0; token < tile.count; token += added_tokens) {
        if (first_token == token) {
#pragma unroll
          for (int i = 0; i < 2; ++i) stage_sums<0, added_tokens / 8>(d[i], strip + i, base, lane);
        }
        __syncthreads();
        add_staged<row_tile>(p, tile, tile.row, token, base, thread, threads);
        __syncthreads();
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        finish<epilogue, 8>(p, d[i], tile, tile.row + (strip + i) * tile_rows, strip + i, first_token, base,
                            lane);
      }
      __syncthreads();
      drain<epilogue, row_tile>(p, tile, tile.row, base, thread, threads);
      __syncthreads();
    }
  }
}

}  // namespace

template <Epilogue epilogue>
void launch_mma(Product product, cudaStream_t stream) {
  product.token_share = tokens_of_tile(product.tokens, token_tile);
  constexpr int shared = stages * stage_bytes;
  const auto kernel = product_kernel<epilogue>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "asking for shared memory");
  int device = 0;
  int processors = 0;
  int blocks = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "counting processors");
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared), "counting blocks");
  kernel<<<static_cast<unsigned>(processors * blocks), threads, shared, stream>>>(product);
  check(cudaGetLastError(), "launching a product");
}

template void launch_mma<Epilogue::store>(Product, cudaStream_t);
template void launch_mma<Epilogue::add>(Product, cudaStream_t);
template void launch_mma<Epilogue::swiglu>(Product, cudaStream_t);

}  // namespace calla::cuda
