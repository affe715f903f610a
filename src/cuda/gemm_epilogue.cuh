// From sums in registers to memory. Sums are fragments of 16 rows of weights x 8 tokens; memory wants a
// token's rows next to each other, so halves go through shared memory, transposed: 128 rows at a time,
// [token] [128 or, after SwiGLU, 64 rows], the 16-byte pieces of a token exchanged by XOR with its number
// mod 8.
#pragma once
#include "cuda/gemm_product.cuh"

namespace calla::cuda {

inline constexpr int staged_rows = 128;
inline constexpr int staging_bytes = token_tile * staged_rows * 2;

/// 16-byte pieces of a token in the staging memory.
template <Epilogue epilogue>
inline constexpr int staged_pieces = epilogue == Epilogue::swiglu ? staged_rows / 16 : staged_rows / 8;

__device__ inline float silu(float x) { return __fdividef(x, 1.0F + __expf(-x)); }

/// Two sums, scaled, in half; what is too large is the largest half, and what is not a number stays none.
__device__ inline std::uint32_t clamped_halves(float first, float second, float scale) {
  const __half2 largest = as_half2(0x7BFF7BFF);
  const __half2 value = __floats2half2_rn(first * scale, second * scale);
  return as_bits(__hmax2_nan(__hmin2_nan(value, largest), __hneg2(largest)));
}

// Four 8 x 8 matrices of rows of weights x tokens are staged together: matrix m has the tokens 8 (m / across)
// .. 8 (m / across) + 7 and the piece m % across from a token and a piece on. The piece is a multiple of
// `across`, and the token one of 8, so that eight tokens later the place is a constant further.
template <Epilogue epilogue>
inline constexpr int staged_8_tokens = 8 * staged_pieces<epilogue> * 16;

/// Where a lane stores.
template <Epilogue epilogue, int across>
__device__ inline std::uint32_t staging_place(std::uint32_t staging, int token, int piece, int lane) {
#if __CUDA_ARCH__ >= 900
  const int matrix = lane / 8;
  const int row = lane % 8;
  const int t = token + 8 * (matrix / across) + row;
  const int at = (piece + matrix % across) ^ row;
  return staging + static_cast<std::uint32_t>((t * staged_pieces<epilogue> + at) * 16);
#else
  const int row = lane / 4;
  return staging + static_cast<std::uint32_t>(((token + row) * staged_pieces<epilogue> + (piece ^ row)) * 16 +
                                              lane % 4 * 4);
#endif
}

template <Epilogue epilogue, int across>
__device__ inline void stage(std::uint32_t place, const std::uint32_t (&m)[4]) {
#if __CUDA_ARCH__ >= 900
  store_matrices_transposed(place, m[0], m[1], m[2], m[3]);
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t piece = place ^ static_cast<std::uint32_t>(i % across * 16);
    store_shared(piece + static_cast<std::uint32_t>(i / across * staged_8_tokens<epilogue>),
                 transpose_matrix(m[i]));
  }
#endif
}

/// Finishes a warp's sums: 16 rows from `row` on, 8 x `blocks` tokens from `token` on; strip: which 16 of the
/// 128 staged rows they are.
template <Epilogue epilogue, int blocks, int all>
__device__ void finish(const Product& p, const float (&d)[all][4], const Tile& tile, int row, int strip,
                       int token, std::uint32_t staging, int lane) {
  static_assert(blocks % 4 == 0 && epilogue != Epilogue::add);
  const int g = lane / 4;
  const int t = token + lane % 4 * 2;
  if constexpr (epilogue == Epilogue::swiglu) {
    const std::uint32_t place = staging_place<epilogue, 1>(staging, token, strip, lane);
#pragma unroll
    for (int j = 0; j < blocks; j += 4) {
      std::uint32_t m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&v)[4] = d[j + i];
        m[i] = clamped_halves(silu(v[0]) * v[2], silu(v[1]) * v[3], inner_scale);
      }
      stage<epilogue, 1>(place + static_cast<std::uint32_t>(j * staged_8_tokens<epilogue>), m);
    }
  } else {
    if (row < p.split) {
      const std::uint32_t place = staging_place<epilogue, 2>(staging, token, strip * 2, lane);
#pragma unroll
      for (int j = 0; j < blocks; j += 2) {
        const std::uint32_t m[4] = {clamped_halves(d[j][0], d[j][1], p.scale),
                                    clamped_halves(d[j][2], d[j][3], p.scale),
                                    clamped_halves(d[j + 1][0], d[j + 1][1], p.scale),
                                    clamped_halves(d[j + 1][2], d[j + 1][3], p.scale)};
        stage<epilogue, 2>(place + static_cast<std::uint32_t>(j * staged_8_tokens<epilogue>), m);
      }
    } else if (row < p.rows) {
      const int width = p.rows - p.split;
#pragma unroll
      for (int j = 0; j < blocks; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = t + 8 * j + i % 2;
          if (at < tile.count)
            p.tail[static_cast<std::size_t>(tile.first + at) * width + (row - p.split + g + i / 2 * 8)] =
                d[j][i];
        }
      }
    }
  }
}

/// Writes what was staged of `rows` rows from `row` on; called by `threads` threads after a barrier.
template <Epilogue epilogue, int rows>
__device__ void drain(const Product& p, const Tile& tile, int row, std::uint32_t staging, int thread,
                      int threads) {
  constexpr int pieces = staged_pieces<epilogue>;
  const int column = epilogue == Epilogue::swiglu ? row / 2 : row;
  const int columns = epilogue == Epilogue::swiglu ? p.rows / 2 : p.split;
  const int piece = thread % pieces;
  if (piece >= pieces * rows / staged_rows || column + piece * 8 >= columns) return;
#pragma unroll 4
  for (int t = thread / pieces; t < tile.count; t += threads / pieces) {
    const uint4 value =
        load_shared(staging + static_cast<std::uint32_t>((t * pieces + (piece ^ (t & 7))) * 16));
    __half* to = p.y + static_cast<std::size_t>(tile.first + t) * p.stride + (column + piece * 8);
    *reinterpret_cast<uint4*>(to) = value;
  }
}

// Sums that are added to a residual stay float, and so take the staging memory for 64 tokens at a time:
// [token] [128 rows], rows exchanged by XOR with 8 (token / 2 mod 4), so that a fragment's stores are in all
// banks.
inline constexpr int added_tokens = 64;
static_assert(added_tokens * staged_rows * 4 == staging_bytes);

__device__ inline std::uint32_t added_at(int token, int row) {
  return static_cast<std::uint32_t>((token * staged_rows + (row ^ (token / 2 % 4 * 8))) * 4);
}

/// Stages `count` fragments of a warp's 16 rows, from `begin` on.
template <int begin, int count, int blocks>
__device__ void stage_sums(const float (&d)[blocks][4], int strip, std::uint32_t staging, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t place = staging + added_at(lane % 4 * 2, strip * tile_rows + lane / 4 + half * 8);
#pragma unroll
    for (int j = 0; j < count; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        store_shared(place + static_cast<std::uint32_t>((8 * j + c) * staged_rows * 4),
                     __float_as_uint(d[begin + j][2 * half + c]));
      }
    }
  }
}

/// Adds what was staged of `rows` rows from `row` on, and the tokens from `token` of the tile on; called by
/// `threads` threads after a barrier.
template <int rows>
__device__ void add_staged(const Product& p, const Tile& tile, int row, int token, std::uint32_t staging,
                           int thread, int threads) {
  const int column = thread % 32 * 4;
  if (column >= rows || row + column >= p.rows) return;
  const int count = min(added_tokens, tile.count - token);
#pragma unroll 4
  for (int t = thread / 32; t < count; t += threads / 32) {
    auto* at = reinterpret_cast<float4*>(
        p.residual + static_cast<std::size_t>(tile.first + token + t) * p.rows + (row + column));
    const uint4 sums = load_shared(staging + added_at(t, column));
    const float4 old = *at;
    *at = {old.x + __uint_as_float(sums.x), old.y + __uint_as_float(sums.y), old.z + __uint_as_float(sums.z),
           old.w + __uint_as_float(sums.w)};
  }
}

}  // namespace calla::cuda
