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

  /// Both registers of each of a group's four instructions, for the first rows that they have columns for.
  __device__ void load(int group, std::uint32_t (&b)[8]) const {
    const int column = lane_id() / 4;
    const int row = column / 2;
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
  __device__ float sum(int group) const { return sums[min(lane_id() % 4, R - 1)][group]; }
};

/// The same in a warp's registers, filled up to four rows at a time.
template <int G, int R>
struct Operand {
  static constexpr int row_blocks = (R + block_rows - 1) / block_rows;
  std::uint32_t b[row_blocks][G][8];
  float sums[row_blocks][G];

  /// Of rows that lie in shared memory, to be a block of rows here.
  template <int Rows>
  __device__ void take(int row_block, const Activations<G, Rows>& from) {
#pragma unroll
    for (int group = 0; group < G; ++group) {
      from.load(group, b[row_block][group]);
      sums[row_block][group] = from.sum(group);
    }
  }
};

/// Where the product of a row of a tile and a row of activations lies among a warp's.
__device__ constexpr int partial_index(int tile_row, int row) { return row * tile_rows + tile_row; }

/// A warp's part of a tile's product: rows lane / 4 and lane / 4 + 8 of the tile, row 4 b + lane % 4 of the
/// activations.
template <int R>
struct TileProduct {
  static constexpr int row_blocks = (R + block_rows - 1) / block_rows;

  /// Instructions that do not wait for each other take turns: those of all groups for one block of rows, or
  /// of all blocks of rows for a group. The order within a group is the same whatever their number.
  template <int G>
  __device__ void add(const StagedPart<G>& w, const Operand<G, R>& x) {
    constexpr int together = row_blocks == 1 ? G : 1;
#pragma unroll
    for (int first = 0; first < G; first += together) {
      uint4 codes[together];
      uint2 scales[together];
      float d[together][row_blocks][4] = {};
#pragma unroll
      for (int i = 0; i < together; ++i) codes[i] = w.codes(first + i);
#pragma unroll
      for (int i = 0; i < together; ++i) scales[i] = w.scales(first + i);
#pragma unroll
      for (int h = 0; h < 4; ++h) {
#pragma unroll
        for (int i = 0; i < together; ++i) {
          const std::uint32_t words[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w};
          std::uint32_t a[4];
          mask_codes(words[h], a);
#pragma unroll
          for (int nb = 0; nb < row_blocks; ++nb)
            mma_16816(d[i][nb], a, x.b[nb][first + i][2 * h], x.b[nb][first + i][2 * h + 1]);
        }
      }
#pragma unroll
      for (int i = 0; i < together; ++i) {
#pragma unroll
        for (int nb = 0; nb < row_blocks; ++nb) {
          const float sum = x.sums[nb][first + i];
          products_[nb][0] = fmaf(scale_of(scales[i].x), fmaf(d[i][nb][1], 1.0F / low_factor, d[i][nb][0]),
                                  products_[nb][0]);
          products_[nb][1] = fmaf(scale_of(scales[i].y), fmaf(d[i][nb][3], 1.0F / low_factor, d[i][nb][2]),
                                  products_[nb][1]);
          biases_[nb][0] = fmaf(bias_of(scales[i].x), sum, biases_[nb][0]);
          biases_[nb][1] = fmaf(bias_of(scales[i].y), sum, biases_[nb][1]);
        }
      }
    }
  }

  /// Of row lane / 4 + 8 * half of the tile and a row of the block of rows.
  __device__ float value(int row_block, int half) const {
    const float unit = half == 0 ? masked_low_unit : masked_high_unit;
    return fmaf(products_[row_block][half], 1.0F / unit, biases_[row_block][half]);
  }

  /// Into the warp's place of the block's partial sums, times a factor.
  __device__ void store(float* partial, float factor = 1.0F) const {
    const int g = lane_id() / 4;
#pragma unroll
    for (int nb = 0; nb < row_blocks; ++nb) {
      const int row = block_rows * nb + lane_id() % 4;
      if (row >= R) continue;
      partial[partial_index(g, row)] = value(nb, 0) * factor;
      partial[partial_index(g + 8, row)] = value(nb, 1) * factor;
    }
  }

 private:
  float products_[row_blocks][2] = {};  // of scales and codes, in units of the masked codes
  float biases_[row_blocks][2] = {};
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

__device__ inline float sigmoid(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }
__device__ inline float silu(float x) { return __fdividef(x, 1.0F + __expf(-x)); }
__device__ inline float softplus(float x) { return fmaxf(x, 0.0F) + log1pf(__expf(-fabsf(x))); }

}  // namespace calla::cuda
