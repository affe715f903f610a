// Products of 4-bit matrices with a few rows of float32 activations, for decode.
//
//   y[row] = sum over groups g of scale[g] * (sum of codes * x) + bias[g] * (sum of x)
//
// The weights are the A operand of m16n8k32, unsigned bytes. A warp's part of a row of activations is fixed
// point of 23 bits: units of the power of two that makes the largest less than 2^22, in three digits of eight
// bits, each a column of the instruction; so the sums of codes are exact, and a product is as exact as in
// float32. A block's warps share the columns of the matrix (the k of the product): each keeps its part of the
// activations and walks over tiles; the parts are summed in a fixed order. A row's result does not depend on
// the other rows. Bytes moved: the weights, once. Bound by them, and where they are there already by the
// matrix instruction, of whose eight columns a row has four.
#pragma once
#include <cstddef>
#include <cstdint>

#include <cuda_fp16.h>

#include "cuda/codes.cuh"
#include "cuda/digits.h"
#include "cuda/ptx.cuh"
#include "cuda/tiles.h"

namespace calla::cuda {

inline constexpr int warp_threads = 32;
inline constexpr int instruction_rows = 2;  // rows of activations that share the columns of an instruction
inline constexpr int few_rows = 4;          // that are loaded together

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

/// The first of a lane's columns of the activations: it has four from there, and the four that begin eight
/// columns further.
__device__ inline int lane_column() { return lane_id() / 2 * 16 + lane_id() % 2 * 4; }

/// A lane's columns, `at` being its first. Through the first-level cache: past it, the blocks of an SM that
/// ask for a line at a time would have it brought one after the other.
__device__ inline void load_columns(const float* at, float (&values)[8]) {
  const float4 low = reinterpret_cast<const float4*>(at)[0];
  const float4 high = reinterpret_cast<const float4*>(at)[2];
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

/// What a warp has of the activations, in shared memory: G groups of 64 columns of R rows, as digits, and
/// their sums.
template <int G, int R>
struct alignas(16) Activations {
  static constexpr int lanes = 8 * G;  // that have columns, eight each
  std::uint32_t digits[R][digit_words(G)];
  float sums[R][G];  // in 256 units
  float units[R];

  /// The warp fills it: source(row) gives a thread its eight columns; it is asked for few rows before any is
  /// used, so that their loads overlap. Rows from `rows` on are those of the last one.
  template <class Source>
  __device__ void fill(int rows, Source source) {
    constexpr int together = R < few_rows ? R : few_rows;
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

  /// The warp fills a row: a thread's eight columns.
  __device__ void store(int row, const float (&values)[8]) {
    const int lane = lane_id();
    unsigned largest = 0;  // the bits of what is not negative are in its order; not a number is above all
    float sum = 0;
#pragma unroll
    for (const float value : values) {
      largest = max(largest, __float_as_uint(fabsf(value)));
      sum += value;
    }
    constexpr int mantissa_bits = 23;
    constexpr unsigned least_exponent = 40;  // smaller numbers count as zeros
    constexpr unsigned infinite = 255;
    const unsigned exponent = max(max_of_warp(largest) >> mantissa_bits, least_exponent);
    // 2^21 units are 2^(exponent - 127). Where a number is not finite, no result is.
    const float unit = __uint_as_float(exponent == infinite ? 0x7FC00000U : (exponent - 21) << mantissa_bits);
    const float per_unit = __uint_as_float((127 + 127 + 21 - exponent) << mantissa_bits);
    // The digits -128 .. 127: bytes, each 128 more than its digit, and that again.
    constexpr unsigned above = 0x00808080;
    unsigned y[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = static_cast<unsigned>(__float2int_rn(values[i] * per_unit)) + above;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // The columns 2 t, 2 t + 8, 2 t + 1, 2 t + 9 of sixteen, in the order of the codes of a word.
      const unsigned low01 = __byte_perm(y[2 * j], y[2 * j + 4], 0x5140);
      const unsigned low23 = __byte_perm(y[2 * j + 1], y[2 * j + 5], 0x5140);
      const unsigned high01 = __byte_perm(y[2 * j], y[2 * j + 4], 0x0062);
      const unsigned high23 = __byte_perm(y[2 * j + 1], y[2 * j + 5], 0x0062);
      const unsigned planes[digit_planes] = {__byte_perm(high01, high23, 0x5410),
                                             __byte_perm(low01, low23, 0x7632),
                                             __byte_perm(low01, low23, 0x5410)};
#pragma unroll
      for (int plane = 0; plane < digit_planes; ++plane) {
        if (lane < lanes)
          digits[row][digit_word(lane / 8, plane, lane % 2 * 2 + j, lane / 2 % 4)] =
              planes[plane] ^ 0x80808080U;
      }
    }
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, distance);
    if (lane < lanes && lane % 8 == 0) sums[row][lane / 8] = sum * (per_unit / 256);
    if (lane == 0) units[row] = unit;
  }

  /// The registers of a group's two instructions, for the rows that an instruction has columns for: the
  /// highest digits and the middle ones, none and the lowest.
  __device__ uint4 b(int row_block, int group) const {
    const int column = lane_id() / 4;
    const int row = instruction_rows * row_block + column / 4;
    if (row >= R || column % 4 == 2) return {};
    const int plane = min(column % 4, digit_planes - 1);
    return *reinterpret_cast<const uint4*>(digits[row] + digit_word(group, plane, lane_id() % 4, 0));
  }
  /// Of the lane's row; it is added to the higher digits.
  __device__ float sum(int row_block, int group) const {
    return lane_id() % 2 == 0 ? sums[lane_row(row_block)][group] : 0.0F;
  }
  __device__ float unit(int row_block) const { return units[lane_row(row_block)]; }

 private:
  __device__ static int lane_row(int row_block) {
    return min(instruction_rows * row_block + lane_id() % 4 / 2, R - 1);
  }
};

/// The same in a warp's registers, filled a few rows at a time.
template <int G, int R>
struct Operand {
  static_assert(R % few_rows == 0);
  static constexpr int row_blocks = R / instruction_rows;

  /// Of rows that lie in shared memory, to be the rows from `first_row` on here.
  __device__ void take(int first_row, const Activations<G, few_rows>& from) {
#pragma unroll
    for (int nb = 0; nb < few_rows / instruction_rows; ++nb) {
      const int block = first_row / instruction_rows + nb;
#pragma unroll
      for (int group = 0; group < G; ++group) {
        b_[block][group] = from.b(nb, group);
        sums_[block][group] = from.sum(nb, group);
      }
      units_[block] = from.unit(nb);
    }
  }
  __device__ uint4 b(int row_block, int group) const { return b_[row_block][group]; }
  __device__ float sum(int row_block, int group) const { return sums_[row_block][group]; }
  __device__ float unit(int row_block) const { return units_[row_block]; }

 private:
  uint4 b_[row_blocks][G];
  float sums_[row_blocks][G];
  float units_[row_blocks];
};

/// Where the product of a row of a tile and a row of activations lies among a warp's.
__device__ constexpr int partial_index(int tile_row, int row) { return row * tile_rows + tile_row; }

/// A warp's part of a tile's product. A lane has of each block of rows one row of the activations (lane_row)
/// and one of the tile (lane_tile_row).
template <int R>
struct TileProduct {
  static constexpr int row_blocks = (R + instruction_rows - 1) / instruction_rows;

  __device__ static int lane_row(int row_block) { return instruction_rows * row_block + lane_id() % 4 / 2; }
  __device__ static int lane_tile_row() { return lane_id() / 4 + lane_id() % 2 * 8; }

  /// `X`: Activations or Operand. Instructions that do not wait for each other take turns: those of all
  /// groups for few rows, those of some blocks of rows for a group. The order within a group is the same
  /// whatever their number.
  template <int G, class X>
  __device__ void add(const StagedPart<G>& w, const X& x) {
    constexpr int groups = row_blocks <= few_rows / instruction_rows ? G : 1;
    constexpr int blocks = row_blocks < 4 ? row_blocks : 4;
    static_assert(row_blocks % blocks == 0);
#pragma unroll
    for (int first = 0; first < G; first += groups) {
      uint4 codes[groups];
      uint2 scales[groups];
#pragma unroll
      for (int i = 0; i < groups; ++i) {
        codes[i] = w.codes(first + i);
        scales[i] = w.scales(first + i);
      }
#pragma unroll
      for (int first_block = 0; first_block < row_blocks; first_block += blocks) {
        int d[groups][blocks][4] = {};
        uint4 b[groups][blocks];
#pragma unroll
        for (int i = 0; i < groups; ++i) {
#pragma unroll
          for (int nb = 0; nb < blocks; ++nb) b[i][nb] = x.b(first_block + nb, first + i);
        }
#pragma unroll
        for (int i = 0; i < groups; ++i) {
          std::uint32_t a[4];
          codes_as_bytes(codes[i].x, codes[i].y, a);
#pragma unroll
          for (int nb = 0; nb < blocks; ++nb) mma_16832(d[i][nb], a, b[i][nb].x, b[i][nb].y);
        }
#pragma unroll
        for (int i = 0; i < groups; ++i) {
          std::uint32_t a[4];
          codes_as_bytes(codes[i].z, codes[i].w, a);
#pragma unroll
          for (int nb = 0; nb < blocks; ++nb) mma_16832(d[i][nb], a, b[i][nb].z, b[i][nb].w);
        }
#pragma unroll
        for (int i = 0; i < groups; ++i) {
#pragma unroll
          for (int nb = 0; nb < blocks; ++nb) {
            float(&sums)[2] = sums_[first_block + nb];
            const float sum = x.sum(first_block + nb, first + i);
            sums[0] = fmaf(bias_of(scales[i].x), sum, sums[0]);
            sums[1] = fmaf(bias_of(scales[i].y), sum, sums[1]);
            sums[0] =
                fmaf(scale_of(scales[i].x), static_cast<float>(d[i][nb][0] * 256 + d[i][nb][1]), sums[0]);
            sums[1] = fmaf(scale_of(scales[i].y), static_cast<float>(d[i][nb][2] * 16 + (d[i][nb][3] >> 4)),
                           sums[1]);
          }
        }
      }
    }
  }

  /// The lane's; all lanes ask at once.
  template <class X>
  __device__ float value(const X& x, int row_block) const {
    const float(&sums)[2] = sums_[row_block];
    const bool higher = lane_id() % 2 == 0;
    const float other = __shfl_xor_sync(0xFFFFFFFFU, higher ? sums[1] : sums[0], 1);
    return (higher ? fmaf(sums[0], 256.0F, other) : fmaf(other, 256.0F, sums[1])) * x.unit(row_block);
  }

  /// Into the warp's place of the block's partial sums, times a factor.
  template <class X>
  __device__ void store(const X& x, float* partial, float factor = 1.0F) const {
#pragma unroll
    for (int nb = 0; nb < row_blocks; ++nb) {
      const float sum = value(x, nb);
      if (lane_row(nb) < R) partial[partial_index(lane_tile_row(), lane_row(nb))] = sum * factor;
    }
  }

 private:
  float sums_[row_blocks][2] = {};  // tile rows lane / 4 and lane / 4 + 8; even lanes' are in 256 units
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
