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
#include "cuda/ptx.cuh"
#include "cuda/tiles.h"

namespace calla::cuda {

inline constexpr int warp_threads = 32;
inline constexpr int block_rows = 4;  // rows of activations that share the eight columns of an instruction
inline constexpr float low_factor = 2048.0F;

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % warp_threads; }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x) / warp_threads; }

/// The part of `G` groups of columns that a warp has of a tile, as it lies in memory.
template <int G>
struct TilePart {
  uint4 codes[G];
  uint2 scales[G];

  /// `at` is the first of G tiles of a row of tiles.
  __device__ void load(const std::byte* at) {
    const int lane = lane_id();
#pragma unroll
    for (int i = 0; i < G; ++i) {
      codes[i] = load_weights(at + i * tile_bytes + lane * 16);
      scales[i] = load_weights8(at + i * tile_bytes + tile_code_bytes + lane / 4 * 8);
    }
  }
};

/// What a warp has of the activations: G groups of 64 columns, 4 NB rows, as fragments of the B operand. A
/// thread holds column lane / 4: row 4 nb + lane / 8, its high half in even columns, its low half in odd
/// ones.
template <int G, int NB>
struct Activations {
  std::uint32_t b[G][NB][4][2];
  float sums[G][NB];  // over a group, of row 4 nb + lane % 4

  /// source(row, column) gives two neighbours of a row, within the range of half; column is even. Rows from
  /// `rows` on are zero.
  template <class Source>
  __device__ void load(int first_group, int rows, Source source) {
    const int column = lane_id() / 4;
    const int t = lane_id() % 4;
    const bool low = (column & 1) != 0;
#pragma unroll
    for (int i = 0; i < G; ++i) {
#pragma unroll
      for (int nb = 0; nb < NB; ++nb) {
        const int row = block_rows * nb + column / 2;
#pragma unroll
        for (int h = 0; h < 4; ++h) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int k = (first_group + i) * tile_columns + 16 * h + 8 * half + 2 * t;
            b[i][nb][h][half] = row < rows ? split(source(row, k), low) : 0;
          }
        }
        sum(i, nb);
      }
    }
  }

 private:
  static __device__ std::uint32_t split(float2 value, bool low) {
    const __half2 high = __floats2half2_rn(value.x, value.y);
    const float2 rounded = __half22float2(high);
    const __half2 rest =
        __floats2half2_rn((value.x - rounded.x) * low_factor, (value.y - rounded.y) * low_factor);
    return as_bits(low ? rest : high);
  }

  /// The columns' sums, through a matrix of ones: exact, and in the place where the product's bias needs
  /// them.
  __device__ void sum(int i, int nb) {
    const std::uint32_t ones[4] = {0x3C003C00, 0x3C003C00, 0x3C003C00, 0x3C003C00};
    float d[4] = {};
#pragma unroll
    for (int h = 0; h < 4; ++h) mma_16816(d, ones, b[i][nb][h][0], b[i][nb][h][1]);
    sums[i][nb] = d[0] + d[1] / low_factor;
  }
};

/// A warp's part of a tile's product: rows lane / 4 and lane / 4 + 8 of the tile, row 4 nb + lane % 4 of the
/// activations.
template <int NB>
struct TileProduct {
  float value[NB][2] = {};

  template <int G>
  __device__ void add(const TilePart<G>& w, const Activations<G, NB>& x) {
#pragma unroll
    for (int i = 0; i < G; ++i) {
      float d[NB][4] = {};
      const std::uint32_t words[4] = {w.codes[i].x, w.codes[i].y, w.codes[i].z, w.codes[i].w};
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        std::uint32_t a[4];
        unpack_codes(words[h], a);
#pragma unroll
        for (int nb = 0; nb < NB; ++nb) mma_16816(d[nb], a, x.b[i][nb][h][0], x.b[i][nb][h][1]);
      }
#pragma unroll
      for (int nb = 0; nb < NB; ++nb) {
        value[nb][0] = fmaf(scale_of(w.scales[i].x), d[nb][0] + d[nb][1] / low_factor,
                            fmaf(bias_of(w.scales[i].x), x.sums[i][nb], value[nb][0]));
        value[nb][1] = fmaf(scale_of(w.scales[i].y), d[nb][2] + d[nb][3] / low_factor,
                            fmaf(bias_of(w.scales[i].y), x.sums[i][nb], value[nb][1]));
      }
    }
  }

  /// Into the warp's place of the block's partial sums, [16 rows of the tile][4 NB rows of activations].
  __device__ void store(float* partial) const {
    const int g = lane_id() / 4;
    const int t = lane_id() % 4;
#pragma unroll
    for (int nb = 0; nb < NB; ++nb) {
      partial[g * block_rows * NB + block_rows * nb + t] = value[nb][0];
      partial[(g + 8) * block_rows * NB + block_rows * nb + t] = value[nb][1];
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

__device__ inline float sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }
__device__ inline float silu(float x) { return x / (1.0F + __expf(-x)); }
__device__ inline float softplus(float x) { return fmaxf(x, 0.0F) + log1pf(__expf(-fabsf(x))); }

}  // namespace calla::cuda
