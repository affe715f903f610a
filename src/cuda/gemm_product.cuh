// What the two kernels of gemm.h share: the division of a product into tiles, and the way from a tile of
// codes to matrix operands.
#pragma once
#include <cuda_fp16.h>

#include "cuda/codes.cuh"
#include "cuda/gemm_product.h"
#include "cuda/gemm_ptx.cuh"
#include "cuda/ptx.cuh"

namespace calla::cuda {

/// A tile of the result: tokens (routes) first .. first + count - 1 and a number of rows. Behind the last
/// tile come tiles without tokens.
struct Tile {
  int first;
  int count;
  int row;
  int expert;
};

/// Tiles are numbered with row tiles of one token tile next to each other: blocks that run at the same time
/// share tokens and, further on, weights, which the second-level cache then holds.
template <int row_tile>
__device__ Tile tile_at(const Product& p, int index) {
  const int row_tiles = (p.rows + row_tile - 1) / row_tile;
  const int tokens = index / row_tiles;
  const int row = (index - tokens * row_tiles) * row_tile;
  if (p.tiles == nullptr) {
    const int first = tokens * p.token_share;
    return {.first = first, .count = max(0, min(p.token_share, p.tokens - first)), .row = row, .expert = 0};
  }
  if (tokens >= *p.tile_count) return {};
  const TokenTile tile = p.tiles[tokens];
  return {.first = tile.first, .count = tile.count, .row = row, .expert = tile.expert};
}

/// The row of x that a route reads.
__device__ inline int source_row(const Product& p, int route) {
  return p.sources != nullptr ? p.sources[route] : route;
}

// Tokens lie in shared memory as rows of one group, 128 bytes, the eight 16-byte pieces exchanged by XOR with
// the row's number mod 8: eight rows' equal pieces are in different banks, and it is what wgmma reads.
inline constexpr int token_row_bytes = tile_columns * 2;
__device__ inline std::uint32_t piece_offset(int token, int piece) {
  return static_cast<std::uint32_t>(token * token_row_bytes + ((piece ^ (token & 7)) << 4));
}

/// What a lane has of a tile: its codes, and {scale, bias} of its two rows.
struct TileWords {
  uint4 codes;
  uint2 pairs;
};
__device__ inline TileWords load_tile(std::uint32_t tile, int lane) {
  return {.codes = load_shared(tile + static_cast<std::uint32_t>(lane * 16)),
          .pairs = load_shared8(tile + static_cast<std::uint32_t>(tile_code_bytes + (lane >> 2) * 8))};
}

/// The four A fragments of a tile: s q + b in half, q exact.
__device__ inline void unpack_tile(const TileWords& tile, std::uint32_t (&a)[4][4]) {
  const __half2 scale[2] = {__float2half2_rn(scale_of(tile.pairs.x)),
                            __float2half2_rn(scale_of(tile.pairs.y))};
  const __half2 bias[2] = {__float2half2_rn(bias_of(tile.pairs.x)), __float2half2_rn(bias_of(tile.pairs.y))};
  const std::uint32_t words[4] = {tile.codes.x, tile.codes.y, tile.codes.z, tile.codes.w};
#pragma unroll
  for (int h = 0; h < 4; ++h) {
    std::uint32_t q[4];
    unpack_codes(words[h], q);
#pragma unroll
    for (int i = 0; i < 4; ++i) a[h][i] = as_bits(__hfma2(as_half2(q[i]), scale[i & 1], bias[i & 1]));
  }
}

}  // namespace calla::cuda
