// logits[t][r] = sum over k of W[r][k] x[t][k], W 8-bit with a scale and a bias a group, x = high + low /
// 2048.
//
// Codes less 128 are exact in half, so a group's product is two on the tensor cores, with high and with low;
// sums of groups are scaled and added in float, with what the bias and the 128 make of the sum of x:
//   logit += s D + (b + 128 s) sum(x),  D = D_high + D_low / 2048.
// A block has 64 tokens, a warp two times 16 rows; x comes through two stages of shared memory, codes
// straight from global memory. In a group, lane t of a row has k = 16 t .. 16 t + 15 and gives them to the
// four matrix products in order: any order serves as long as both operands agree, and this one makes 16-byte
// loads of all. Bytes: 0.5 MB of weights a block from the second-level cache, 8 KB of x a token; bound by the
// issue of mma.
#include "cuda/codes.cuh"
#include "cuda/device.h"
#include "cuda/gemm_ptx.cuh"
#include "cuda/routing.h"

namespace calla::cuda {
namespace {

constexpr int block_tokens = 64;
constexpr int warp_rows = 32;
constexpr int max_warps = 9;
constexpr int row_bytes = 128;                        // a group of a token
constexpr int part_bytes = block_tokens * row_bytes;  // of the high or the low halves
constexpr int sums_at = 2 * part_bytes;
constexpr int stage_bytes = sums_at + block_tokens * 4;

/// The 16-byte pieces of a token are exchanged by XOR with its number mod 8, against conflicts of banks.
__device__ inline std::uint32_t piece_at(int token, int piece) {
  return static_cast<std::uint32_t>(token * row_bytes + ((piece ^ (token & 7)) << 4));
}

__device__ void load_stage(const SplitRows& x, int columns, int first, int tokens, int group,
                           std::uint32_t stage) {
  const int threads = static_cast<int>(blockDim.x);
  for (int i = static_cast<int>(threadIdx.x); i < block_tokens * 8; i += threads) {
    const int token = i / 8;
    if (first + token >= tokens) break;
    const int piece = i % 8;
    const std::size_t from = static_cast<std::size_t>(first + token) * columns + group * 64 + piece * 8;
    copy16(stage + piece_at(token, piece), x.high + from);
    copy16(stage + part_bytes + piece_at(token, piece), x.low + from);
    if (piece == 0) {
      copy4(stage + static_cast<std::uint32_t>(sums_at + token * 4),
            x.sums + static_cast<std::size_t>(first + token) * (columns / 64) + group);
    }
  }
}

/// The weights of a group that a lane has: 16 codes of rows g, g + 8 of two times 16 rows.
struct GroupWeights {
  uint4 codes[2][2];
  std::uint32_t pairs[2][2];
};

/// Four codes, less 128, as two pairs of half.
__device__ inline void unpack_bytes(std::uint32_t codes, std::uint32_t& first, std::uint32_t& second) {
  const __half2 offset = as_half2(0x64806480);  // 1024 + 128
  first = as_bits(__hsub2(as_half2(__byte_perm(codes, 0x64646464, 0x4140)), offset));
  second = as_bits(__hsub2(as_half2(__byte_perm(codes, 0x64646464, 0x4342)), offset));
}

__global__ void __launch_bounds__(32 * max_warps)
    router_kernel(ByteRows w, SplitRows x, int tokens, float* logits) {
  extern __shared__ __align__(128) std::byte memory[];
  const std::uint32_t base = shared_address(memory);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int first = static_cast<int>(blockIdx.x) * block_tokens;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int row = (static_cast<int>(blockIdx.y) * warps + static_cast<int>(threadIdx.x) / 32) * warp_rows;
  const int groups = w.columns / 64;

  // Rows behind the last are read as the last and not stored.
  const std::uint8_t* codes[2][2];
  const std::uint32_t* scales[2][2];
  for (int i = 0; i < 2; ++i) {
    for (int half = 0; half < 2; ++half) {
      const auto r = static_cast<std::size_t>(min(row + 16 * i + 8 * half + g, w.rows - 1));
      codes[i][half] = w.codes + r * w.columns + 16 * t;
      scales[i][half] = w.scales + r * groups;
    }
  }

  const auto load_weights_of = [&](int group) {
    GroupWeights loaded;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        loaded.codes[i][half] = __ldg(reinterpret_cast<const uint4*>(codes[i][half] + group * 64));
        loaded.pairs[i][half] = __ldg(scales[i][half] + group);
      }
    }
    return loaded;
  };

  float logit[2][8][4] = {};
  GroupWeights next = load_weights_of(0);
  load_stage(x, w.columns, first, tokens, 0, base);
  commit_copies();
#pragma unroll 1
  for (int group = 0; group < groups; ++group) {
    const GroupWeights weights = next;
    if (group + 1 < groups) {
      next = load_weights_of(group + 1);
      load_stage(x, w.columns, first, tokens, group + 1,
                 base + static_cast<std::uint32_t>((group + 1) % 2 * stage_bytes));
    }
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();

    std::uint32_t a[2][4][4];
    float scale[2][2];
    float offset[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        scale[i][half] = scale_of(weights.pairs[i][half]);
        offset[i][half] = fmaf(128.0F, scale[i][half], bias_of(weights.pairs[i][half]));
        const uint4& codes16 = weights.codes[i][half];
        const std::uint32_t four[4] = {codes16.x, codes16.y, codes16.z, codes16.w};
#pragma unroll
        for (int h = 0; h < 4; ++h) unpack_bytes(four[h], a[i][h][half], a[i][h][2 + half]);
      }
    }
    const std::uint32_t stage = base + static_cast<std::uint32_t>(group % 2 * stage_bytes);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (first + 8 * j >= tokens) break;
      const int token = 8 * j + g;
      float d[2][2][4] = {};  // rows, part
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint4 low =
            load_shared16(stage + static_cast<std::uint32_t>(part * part_bytes) + piece_at(token, 2 * t));
        const uint4 high =
            load_shared16(stage + static_cast<std::uint32_t>(part * part_bytes) + piece_at(token, 2 * t + 1));
        const std::uint32_t b[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int h = 0; h < 4; ++h) {
#pragma unroll
          for (int i = 0; i < 2; ++i) mma_16816(d[i][part], a[i][h], b[2 * h], b[2 * h + 1]);
        }
      }
      const float2 sums =
          load_shared_floats(stage + static_cast<std::uint32_t>(sums_at + (8 * j + 2 * t) * 4));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float product = fmaf(d[i][1][c], low_scale, d[i][0][c]);
          logit[i][j][c] = fmaf(scale[i][c / 2], product,
                                fmaf(offset[i][c / 2], c % 2 == 0 ? sums.x : sums.y, logit[i][j][c]));
        }
      }
    }
    __syncthreads();  // the stage may be overwritten
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int token = first + 8 * j + 2 * t + c % 2;
        const int r = row + 16 * i + g + c / 2 * 8;
        if (token < tokens && r < w.rows)
          logits[static_cast<std::size_t>(token) * w.rows + r] = logit[i][j][c];
      }
    }
  }
}

}  // namespace

void router_logits(const ByteRows& w, const SplitRows& x, int tokens, float* logits, cudaStream_t stream) {
  const int warps = (w.rows + warp_rows - 1) / warp_rows;
  const int token_blocks = (tokens + block_tokens - 1) / block_tokens;
  // Few tokens make few blocks: then a block has fewer rows.
  const int block_warps = token_blocks >= 96 ? max_warps : token_blocks >= 16 ? 3 : 1;
  const dim3 grid(static_cast<unsigned>(token_blocks),
                  static_cast<unsigned>((warps + block_warps - 1) / block_warps));
  router_kernel<<<grid, static_cast<unsigned>(32 * block_warps), 2 * stage_bytes, stream>>>(w, x, tokens,
                                                                                            logits);
  check(cudaGetLastError(), "launching the router");
}

}  // namespace calla::cuda
