// logits[t][r] = sum over k of W[r][k] x[t][k], W 8-bit with a scale and a bias a group, x = high + low /
// 2048.
//
// Codes less 128 are exact in half, so a group's product is two on the tensor cores, with high and with low;
// sums of groups are scaled and added in float, with what the bias and the 128 make of the sum of x:
//   logit += s D + (b + 128 s) sum(x),  D = D_high + D_low / 2048.
// A warp has 32 experts and up to 64 tokens, 16 at a time; the row behind the experts', the shared expert's
// gate, is shared out among the warps, 8 tokens each. x comes through four stages of shared memory, codes
// straight from global memory, a group ahead. In a group, lane t of a row has k = 16 t .. 16 t + 15 and gives
// them to the four matrix products in order: any order serves as long as both operands agree, and this one
// makes 16-byte loads of all. Bytes: 0.5 MB of weights a block from the second-level cache, 8 KB of x a
// token; bound by the issue of mma. With few tokens a warp is a block and has 16 experts and up to 16 tokens,
// straight from global memory; each product and each sum is the same.
#include "cuda/codes.cuh"
#include "cuda/device.h"
#include "cuda/gemm_ptx.cuh"
#include "cuda/routing.h"

namespace calla::cuda {
namespace {

constexpr int max_tokens = 64;  // of a block
constexpr int warp_rows = 32;
constexpr int stages = 4;
constexpr int row_bytes = 128;                      // a group of a token
constexpr int part_bytes = max_tokens * row_bytes;  // of the high or the low halves
constexpr int sums_at = 2 * part_bytes;
constexpr int stage_bytes = sums_at + max_tokens * 4;

/// Tokens [first, end) of a block.
struct Span {
  int first;
  int end;
};

/// The 16-byte pieces of a token are exchanged by XOR with its number mod 8, against conflicts of banks.
__device__ inline std::uint32_t piece_at(int token, int piece) {
  return static_cast<std::uint32_t>(token * row_bytes + ((piece ^ (token & 7)) << 4));
}

__device__ void load_stage(const SplitRows& x, int columns, const Span& span, int group,
                           std::uint32_t stage) {
  const int piece = static_cast<int>(threadIdx.x) % 8;
  const int threads = static_cast<int>(blockDim.x);
  for (int token = static_cast<int>(threadIdx.x) / 8; span.first + token < span.end; token += threads / 8) {
    const std::size_t from = static_cast<std::size_t>(span.first + token) * columns + group * 64 + piece * 8;
    copy16(stage + piece_at(token, piece), x.high + from);
    copy16(stage + part_bytes + piece_at(token, piece), x.low + from);
    if (piece == 0) {
      copy4(stage + static_cast<std::uint32_t>(sums_at + token * 4),
            x.sums + static_cast<std::size_t>(span.first + token) * (columns / 64) + group);
    }
  }
}

/// What a lane has of 16 rows in a group: 16 codes of the rows g and g + 8, and their {scale, bias}.
struct RowWords {
  uint4 codes[2];
  std::uint32_t pairs[2];
};

/// The lane's part of 16 rows; rows behind the last are read as the last.
struct RowPlaces {
  const std::uint8_t* codes[2];
  const std::uint32_t* pairs[2];

  __device__ RowPlaces(const ByteRows& w, int row, int lane) {
    for (int half = 0; half < 2; ++half) {
      const auto r = static_cast<std::size_t>(min(row + 8 * half + lane / 4, w.rows - 1));
      codes[half] = w.codes + r * w.columns + 16 * (lane % 4);
      pairs[half] = w.scales + r * (w.columns / 64);
    }
  }
  __device__ RowWords load(int group) const {
    RowWords words;
    for (int half = 0; half < 2; ++half) {
      words.codes[half] = __ldg(reinterpret_cast<const uint4*>(codes[half] + group * 64));
      words.pairs[half] = __ldg(pairs[half] + group);
    }
    return words;
  }
};

/// 16 rows in a group as operands: fragments of the codes less 128, and what their products are scaled with.
struct RowOperands {
  std::uint32_t a[4][4];
  float scale[2];
  float offset[2];

  __device__ explicit RowOperands(const RowWords& words) {
    const __half2 middle = as_half2(0x64806480);  // 1024 + 128
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t codes[4] = {words.codes[half].x, words.codes[half].y, words.codes[half].z,
                                      words.codes[half].w};
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        a[h][half] = as_bits(__hsub2(as_half2(__byte_perm(codes[h], 0x64646464, 0x4140)), middle));
        a[h][2 + half] = as_bits(__hsub2(as_half2(__byte_perm(codes[h], 0x64646464, 0x4342)), middle));
      }
      scale[half] = scale_of(words.pairs[half]);
      offset[half] = fmaf(128.0F, scale[half], bias_of(words.pairs[half]));
    }
  }

  /// Adds a group's products of high and low parts to the logits of 8 tokens.
  __device__ void add(const float (&d)[2][4], const float2& sums, float (&logit)[4]) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float product = fmaf(d[1][c], low_scale, d[0][c]);
      logit[c] = fmaf(scale[c / 2], product, fmaf(offset[c / 2], c % 2 == 0 ? sums.x : sums.y, logit[c]));
    }
  }
};

/// The B fragments of 8 tokens, high and low, and their sums.
struct TokenOperands {
  std::uint32_t b[2][8];
  float2 sums;

  __device__ TokenOperands(std::uint32_t stage, int token, int lane) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const std::uint32_t at = stage + static_cast<std::uint32_t>(part * part_bytes);
      const uint4 first = load_shared(at + piece_at(token + lane / 4, lane % 4 * 2));
      const uint4 second = load_shared(at + piece_at(token + lane / 4, lane % 4 * 2 + 1));
      b[part][0] = first.x, b[part][1] = first.y, b[part][2] = first.z, b[part][3] = first.w;
      b[part][4] = second.x, b[part][5] = second.y, b[part][6] = second.z, b[part][7] = second.w;
    }
    sums = load_shared_floats(stage + static_cast<std::uint32_t>(sums_at + (token + lane % 4 * 2) * 4));
  }
};

__device__ void store_logits(const float (&logit)[4], float* logits, int rows, int row, int token, int end,
                             int lane) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int t = token + lane % 4 * 2 + c % 2;
    const int r = row + lane / 4 + c / 2 * 8;
    if (t < end && r < rows) logits[static_cast<std::size_t>(t) * rows + r] = logit[c];
  }
}

/// all_warps: of all rows.
template <int all_warps>
__global__ void __launch_bounds__(32 * all_warps)
    router_kernel(ByteRows w, SplitRows x, int tokens, int block_tokens, float* logits) {
  extern __shared__ __align__(128) std::byte memory[];
  const std::uint32_t base = shared_address(memory);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first = static_cast<int>(blockIdx.x) * block_tokens;
  const Span span{.first = first, .end = min(first + block_tokens, tokens)};
  const int groups = w.columns / 64;
  constexpr int last_row = all_warps * warp_rows;
  constexpr int last_row_turns = max_tokens / 8 / all_warps;  // times 8 tokens of it for this warp

  const RowPlaces places[3] = {
      {w, warp * warp_rows, lane}, {w, warp * warp_rows + 16, lane}, {w, last_row, lane}};
  RowWords next[3] = {places[0].load(0), places[1].load(0), places[2].load(0)};
  for (int group = 0; group < stages - 1; ++group) {
    if (group < groups)
      load_stage(x, w.columns, span, group, base + static_cast<std::uint32_t>(group * stage_bytes));
    commit_copies();
  }

  float logit[2][8][4] = {};
  float last_logit[last_row_turns][4] = {};
#pragma unroll 1
  for (int group = 0; group < groups; ++group) {
    const RowOperands rows[2] = {RowOperands(next[0]), RowOperands(next[1])};
    const RowWords last_words = next[2];
    if (group + 1 < groups) {
#pragma unroll
      for (int i = 0; i < 3; ++i) next[i] = places[i].load(group + 1);
    }
    wait_for_copies<stages - 2>();
    __syncthreads();  // the stage is complete, and the one before it has been read
    const int ahead = group + stages - 1;
    if (ahead < groups)
      load_stage(x, w.columns, span, ahead, base + static_cast<std::uint32_t>(ahead % stages * stage_bytes));
    commit_copies();

    const std::uint32_t stage = base + static_cast<std::uint32_t>(group % stages * stage_bytes);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      if (span.first + 8 * j >= span.end) break;
      const TokenOperands both[2] = {{stage, 8 * j, lane}, {stage, 8 * j + 8, lane}};
      float d[2][2][2][4] = {};  // [rows][tokens][part]: eight sums that do not wait for each other
#pragma unroll
      for (int h = 0; h < 4; ++h) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const std::uint32_t(&b)[8] = both[i / 2 % 2].b[i % 2];
          mma_16816(d[i / 4][i / 2 % 2][i % 2], rows[i / 4].a[h], b[2 * h], b[2 * h + 1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[i / 2].add(d[i / 2][i % 2], both[i % 2].sums, logit[i / 2][j + i % 2]);
    }

    const RowOperands last(last_words);
#pragma unroll
    for (int turn = 0; turn < last_row_turns; ++turn) {
      const int token = 8 * (warp + turn * all_warps);
      if (span.first + token >= span.end) break;
      const TokenOperands operands(stage, token, lane);
      float d[2][4] = {};
#pragma unroll
      for (int h = 0; h < 4; ++h) {
#pragma unroll
        for (int part = 0; part < 2; ++part)
          mma_16816(d[part], last.a[h], operands.b[part][2 * h], operands.b[part][2 * h + 1]);
      }
      last.add(d, operands.sums, last_logit[turn]);
    }
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      store_logits(logit[i][j], logits, w.rows, warp * warp_rows + 16 * i, span.first + 8 * j, span.end,
                   lane);
  }
#pragma unroll
  for (int turn = 0; turn < last_row_turns; ++turn) {
    store_logits(last_logit[turn], logits, w.rows, last_row, span.first + 8 * (warp + turn * all_warps),
                 span.end, lane);
  }
}

/// What a lane has of 8 tokens in a group.
struct TokenWords {
  uint4 halves[2][2];  // [high, low]
  float2 sums;
};

/// The lane's part of 8 tokens; those behind the last are read as the last.
struct TokenPlaces {
  std::size_t halves;
  std::size_t sums[2];

  __device__ TokenPlaces(const ByteRows& w, int token, int tokens, int lane) {
    const auto of = [&](int t) { return static_cast<std::size_t>(min(t, tokens - 1)); };
    halves = of(token + lane / 4) * w.columns + 16 * (lane % 4);
    for (int i = 0; i < 2; ++i) sums[i] = of(token + lane % 4 * 2 + i) * (w.columns / 64);
  }
  __device__ TokenWords load(const SplitRows& x, int group) const {
    TokenWords words;
    const __half* const parts[2] = {x.high, x.low};
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        words.halves[part][i] =
            __ldg(reinterpret_cast<const uint4*>(parts[part] + halves + group * 64 + 8 * i));
    }
    words.sums = {__ldg(x.sums + sums[0] + group), __ldg(x.sums + sums[1] + group)};
    return words;
  }
};

constexpr int few_tokens = 16;  // of a block
constexpr int few_rows = 16;

/// Everything is loaded `ahead` groups before it is used.
__global__ void __launch_bounds__(32) router_few_kernel(ByteRows w, SplitRows x, int tokens, float* logits) {
  constexpr int ahead = 3;
  const int lane = static_cast<int>(threadIdx.x);
  const int token = static_cast<int>(blockIdx.x) * few_tokens;
  const int row = static_cast<int>(blockIdx.y) * few_rows;
  const int groups = w.columns / 64;
  const RowPlaces row_place(w, row, lane);
  const TokenPlaces token_places[2] = {{w, token, tokens, lane}, {w, token + 8, tokens, lane}};
  RowWords row_words[ahead];
  TokenWords token_words[ahead][2];
  const auto load = [&](int group, RowWords& of_rows, TokenWords(&of_tokens)[2]) {
    if (group >= groups) return;
    of_rows = row_place.load(group);
    of_tokens[0] = token_places[0].load(x, group);
    of_tokens[1] = token_places[1].load(x, group);
  };
#pragma unroll
  for (int i = 0; i < ahead; ++i) load(i, row_words[i], token_words[i]);

  float logit[2][4] = {};
#pragma unroll 1
  for (int first = 0; first < groups; first += ahead) {
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (first + i >= groups) continue;
      const RowOperands operands(row_words[i]);
      float d[2][2][4] = {};  // [tokens][part]
      float2 sums[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const TokenWords& words = token_words[i][j];
        sums[j] = words.sums;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const uint4(&b)[2] = words.halves[part];
          mma_16816(d[j][part], operands.a[0], b[0].x, b[0].y);
          mma_16816(d[j][part], operands.a[1], b[0].z, b[0].w);
          mma_16816(d[j][part], operands.a[2], b[1].x, b[1].y);
          mma_16816(d[j][part], operands.a[3], b[1].z, b[1].w);
        }
      }
      load(first + i + ahead, row_words[i], token_words[i]);
#pragma unroll
      for (int j = 0; j < 2; ++j) operands.add(d[j], sums[j], logit[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) store_logits(logit[j], logits, w.rows, row, token + 8 * j, tokens, lane);
}

void launch_few(const ByteRows& w, const SplitRows& x, int tokens, float* logits, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((tokens + few_tokens - 1) / few_tokens),
                  static_cast<unsigned>((w.rows + few_rows - 1) / few_rows));
  router_few_kernel<<<grid, 32, 0, stream>>>(w, x, tokens, logits);
  check(cudaGetLastError(), "launching the router");
}

template <int experts>
void launch_many(const ByteRows& w, const SplitRows& x, int tokens, float* logits, cudaStream_t stream) {
  constexpr int warps = experts / warp_rows;
  constexpr int shared = stages * stage_bytes;
  const auto kernel = router_kernel<warps>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "asking for shared memory");
  // Not too many tokens make few blocks: then a block has fewer.
  const int block_tokens = tokens > 2048 ? max_tokens : 16;
  const auto blocks = static_cast<unsigned>((tokens + block_tokens - 1) / block_tokens);
  kernel<<<blocks, 32 * warps, shared, stream>>>(w, x, tokens, block_tokens, logits);
  check(cudaGetLastError(), "launching the router");
}

}  // namespace

void router_logits(const ByteRows& w, const SplitRows& x, int tokens, float* logits, cudaStream_t stream) {
  constexpr int most_few = 512;
  if (tokens <= most_few) return launch_few(w, x, tokens, logits, stream);
  if (w.columns == qwen36_35b.hidden) {
    launch_many<qwen36_35b.experts>(w, x, tokens, logits, stream);
  } else {
    launch_many<demo.experts>(w, x, tokens, logits, stream);
  }
}

}  // namespace calla::cuda
