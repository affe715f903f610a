// Products of 4-bit matrices with a few rows of float32 activations, for decode.
//
//   y[row] = sum over groups g of scale[g] * (sum of codes * x) + bias[g] * (sum of x)
//
// The weights are the A operand of m16n8k16; a row of activations takes two of the eight columns: its halves
// `hi` and `lo`, x = hi + lo / 2048, which together carry 22 bits, so a product is as exact as in float32. A
// block's warps share the columns of the matrix (the k of the product): each keeps its part of the
// activations in registers and walks over tiles; the parts are summed in a fixed order. A row's result does
// not depend on the other rows. Bytes moved: the weights, once. Bound by them.
#pragma once
#include <cstddef>
#include <cstdint>

#include <cuda_fp16.h>

#include "cuda/codes.cuh"
#include "cuda/fragments.h"
#include "cuda/ptx.cuh"
#include "cuda/tiles.h"

namespace calla::cuda {

inline constexpr int warp_threads = 32;
inline constexpr int block_rows = 4;  // rows of activations that share the eight columns of an instruction
inline constexpr float low_factor = 2048.0F;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % warp_threads; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / warp_threads; }

/// The part of `G` groups of columns that a warp has of a tile, in shared memory as it lies in device memory.
template <int G>
struct alignas(16) StagedPart {
  std::byte data[G * tile_bytes];

  /// The warp starts to copy the first of G neighbouring tiles and those behind it.
  __device__ void copy(const std::byte* from) {
    constexpr int piece = 16;
#pragma unroll
    for (int first = 0; first < G * tile_bytes; first += warp_threads * piece) {
      const int at = first + lane_id() * piece;
      if (at < G * tile_bytes) copy_async(data + at, from + at);
    }
  }
  __device__ uint4 codes(int group) const {
    return *reinterpret_cast<const uint4*>(data + group * tile_bytes + lane_id() * 16);
  }
  __device__ uint2 scales(int group) const {
    return *reinterpret_cast<const uint2*>(data + group * tile_bytes + tile_code_bytes + lane_id() / 4 * 8);
  }
};

/// What a warp has of the activations, in shared memory: G groups of 64 columns of R rows, as fragments of
/// the B operand, and their sums. A row takes the columns 2 r (high halves) and 2 r + 1 (low halves) of the
/// instruction.
template <int G, int R>
struct alignas(16) Activations {
  static constexpr int lanes = 8 * G;  // that have columns, eight neighbours each
  std::uint32_t fragments[R][G][fragment_words];
  float sums[R][G];

  /// The warp fills it: source(row) gives a thread its eight columns from 8 * lane on, within the range of
  /// half; it is asked for all rows of a block of four before any is used, so that their loads overlap. Rows
  /// from `rows` on are those of the last one.
  template <class Source>
  __device__ void fill(int rows, Source source) {
    constexpr int together = R < block_rows ? R : block_rows;
    const bool mine = lane_id() < lanes;
    for (int first = 0; first < R; first += together) {
      float values[together][8] = {};
#pragma unroll
      for (int r = 0; r < together; ++r) {
        if (mine) source(min(first + r, rows - 1), values[r]);
      }
#pragma unroll
      for (int r = 0; r < together; ++r) store(first + r, values[r]);
    }
    __syncwarp();
  }

  /// The warp fills a row: a thread's eight columns from 8 * lane on.
  __device__ void store(int row, const float (&values)[8]) {
    const int lane = lane_id();
    const int group = lane / 8;
    float sum = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const __half2 high = __floats2half2_rn(values[2 * t], values[2 * t + 1]);
      const float2 rounded = __half22float2(high);
      const __half2 low = __floats2half2_rn((values[2 * t] - rounded.x) * low_factor,
                                            (values[2 * t + 1] - rounded.y) * low_factor);
      const float2 rest = __half22float2(low);
      sum += rounded.x + rest.x / low_factor;
      sum += rounded.y + rest.y / low_factor;
      if (lane < lanes) {
        fragments[row][group][fragment_word(0, t, lane % 8)] = as_bits(high);
        fragments[row][group][fragment_word(1, t, lane % 8)] = as_bits(low);
      }
    }
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
    if (lane < lanes && lane % 8 == 0) sums[row][group] = sum;
  }

  /// Both registers of each of a group's four instructions.
  __device__ void load(int group, int row_block, std::uint32_t (&b)[8]) const {
    const int column = lane_id() / 4;
    const int row = block_rows * row_block + column / 2;
    uint4 low{};
    uint4 high{};
    if (row < R) {
      const auto* words = fragments[row][group];
      low = *reinterpret_cast<const uint4*>(words + fragment_word(column % 2, lane_id() % 4, 0));
      high = *reinterpret_cast<const uint4*>(words + fragment_word(column % 2, lane_id() % 4, 4));
    }
    b[0] = low.x, b[1] = low.y, b[2] = low.z, b[3] = low.w;
    b[4] = high.x, b[5] = high.y, b[6] = high.z, b[7] = high.w;
  }
  __device__ float sum(int group, int row_block) const {
    return sums[min(block_rows * row_block + lane_id() % 4, R - 1)][group];
  }
};

/// The same in a warp's registers, for tiles without end: filled four rows at a time.
template <int G, int R>
struct Operand {
  static_assert(R % block_rows == 0);
  std::uint32_t b[R / block_rows][G][8];
  float sums[R / block_rows][G];

  /// Of rows that lie in shared memory, to be a block of rows here.
  __device__ void take(int row_block, const Activations<G, block_rows>& from) {
#pragma unroll
    for (int group = 0; group < G; ++group) {
      from.load(group, 0, b[row_block][group]);
      sums[row_block][group] = from.sum(group, 0);
    }
  }
  __device__ void load(int group, int row_block, std::uint32_t (&out)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = b[row_block][group][i];
  }
  __device__ float sum(int group, int row_block) const { return sums[row_block][group]; }
};

/// Where the product of a row of a tile and a row of activations lies among a warp's.
__device__ constexpr int partial_index(int tile_row, int row) { return row * tile_rows + tile_row; }

/// A warp's part of a tile's product: rows lane / 4 and lane / 4 + 8 of the tile, row 4 b + lane % 4 of the
/// activations.
template <int R>
struct TileProduct {
  static constexpr int row_blocks = (R + block_rows - 1) / block_rows;
  float value[row_blocks][2] = {};

  /// `X`: Activations or Operand. Blocks of rows take turns, so that their instructions do not wait for each
  /// other; the order within one is the same whatever their number.
  template <int G, class X>
  __device__ void add(const StagedPart<G>& w, const X& x) {
#pragma unroll
    for (int i = 0; i < G; ++i) {
      const uint4 codes = w.codes(i);
      const uint2 scales = w.scales(i);
      const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
      std::uint32_t b[row_blocks][8];
      float d[row_blocks][4] = {};
#pragma unroll
      for (int nb = 0; nb < row_blocks; ++nb) x.load(i, nb, b[nb]);
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        std::uint32_t a[4];
        unpack_codes(words[h], a);
#pragma unroll
        for (int nb = 0; nb < row_blocks; ++nb) mma_16816(d[nb], a, b[nb][2 * h], b[nb][2 * h + 1]);
      }
#pragma unroll
      for (int nb = 0; nb < row_blocks; ++nb) {
        const float sum = x.sum(i, nb);
        value[nb][0] = fmaf(scale_of(scales.x), d[nb][0] + d[nb][1] / low_factor,
                            fmaf(bias_of(scales.x), sum, value[nb][0]));
        value[nb][1] = fmaf(scale_of(scales.y), d[nb][2] + d[nb][3] / low_factor,
                            fmaf(bias_of(scales.y), sum, value[nb][1]));
      }
    }
  }

  /// Into the warp's place of the block's partial sums.
  __device__ void store(float* partial) const {
    const int g = lane_id() / 4;
#pragma unroll
    for (int nb = 0; nb < row_blocks; ++nb) {
      const int row = block_rows * nb + lane_id() % 4;
      if (row >= R) continue;
      partial[partial_index(g, row)] = value[nb][0];
      partial[partial_index(g + 8, row)] = value[nb][1];
    }
  }
};

/// Adds up what the warps have stored `stride` floats apart.
template <int Warps>
__device__ inline float sum_partials(const float* partial, int stride) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < Warps; ++w) sum += partial[w * stride];
  return sum;
}

__device__ inline float sum_of_warp(float value) {
#pragma unroll
  for (int distance = warp_threads / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  return value;
}

/// Eight neighbours.
__device__ inline void load8(const float* at, float (&values)[8]) {
  const float4 low = reinterpret_cast<const float4*>(at)[0];
  const float4 high = reinterpret_cast<const float4*>(at)[1];
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

__device__ inline float sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }
__device__ inline float silu(float x) { return x / (1.0F + __expf(-x)); }
__device__ inline float softplus(float x) { return fmaxf(x, 0.0F) + log1pf(__expf(-fabsf(x))); }

}  // namespace calla::cuda
