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

/// Stages four 8 x 8 matrices, rows of weights x tokens: matrix m of the tokens token + 8 (m / across) ..,
/// piece + m % across.
template <Epilogue epilogue, int across>
__device__ inline void stage(std::uint32_t staging, int token, int piece, int lane,
                             const std::uint32_t (&m)[4]) {
  const auto address = [&](int matrix, int row) {
    const int t = token + 8 * (matrix / across) + row;
    const int at = (piece + matrix % across) ^ (t & 7);
    return staging + static_cast<std::uint32_t>((t * staged_pieces<epilogue> + at) * 16);
  };
#if __CUDA_ARCH__ >= 900
  store_matrices_transposed(address(lane / 8, lane % 8), m[0], m[1], m[2], m[3]);
#else
#pragma unroll
  for (int i = 0; i < 4; ++i)
    store_shared(address(i, lane / 4) + static_cast<std::uint32_t>(lane % 4 * 4), transpose_matrix(m[i]));
#endif
}

/// Finishes a warp's sums: 16 rows from `row` on, 8 x `blocks` tokens from `token` on; strip: which 16 of the
/// 128 staged rows they are.
template <Epilogue epilogue, int blocks>
__device__ void finish(const Product& p, const float (&d)[blocks][4], const TokenTile& tile, int row,
                       int strip, int token, std::uint32_t staging, int lane) {
  static_assert(blocks % 4 == 0);
  const int g = lane / 4;
  const int t = token + lane % 4 * 2;
  if constexpr (epilogue == Epilogue::swiglu) {
#pragma unroll
    for (int j = 0; j < blocks; j += 4) {
      std::uint32_t m[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&v)[4] = d[j + i];
        m[i] = clamped_halves(silu(v[0]) * v[2], silu(v[1]) * v[3], inner_scale);
      }
      stage<epilogue, 1>(staging, token + 8 * j, strip, lane, m);
    }
  } else if constexpr (epilogue == Epilogue::store) {
    if (row < p.split) {
#pragma unroll
      for (int j = 0; j < blocks; j += 2) {
        const std::uint32_t m[4] = {clamped_halves(d[j][0], d[j][1], p.scale),
                                    clamped_halves(d[j][2], d[j][3], p.scale),
                                    clamped_halves(d[j + 1][0], d[j + 1][1], p.scale),
                                    clamped_halves(d[j + 1][2], d[j + 1][3], p.scale)};
        stage<epilogue, 2>(staging, token + 8 * j, strip * 2, lane, m);
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
  } else {
    if (row >= p.rows) return;
    constexpr int batch = 4;  // fragments whose loads are under way together
    const auto place = [&](int j, int i) {
      return p.residual + static_cast<std::size_t>(tile.first + t + 8 * j + i % 2) * p.rows +
             (row + g + i / 2 * 8);
    };
    const auto inside = [&](int j, int i) { return t + 8 * j + i % 2 < tile.count; };
#pragma unroll
    for (int begin = 0; begin < blocks; begin += batch) {
      float old[batch][4];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) old[j][i] = inside(begin + j, i) ? *place(begin + j, i) : 0;
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (inside(begin + j, i)) *place(begin + j, i) = old[j][i] + d[begin + j][i];
        }
      }
    }
  }
}

/// Writes what was staged of the 128 rows from `row` on; called by `threads` threads after a barrier.
template <Epilogue epilogue>
__device__ void drain(const Product& p, const TokenTile& tile, int row, std::uint32_t staging, int thread,
                      int threads) {
  if constexpr (epilogue != Epilogue::add) {
    constexpr int pieces = staged_pieces<epilogue>;
    const int column = epilogue == Epilogue::swiglu ? row / 2 : row;
    const int columns = epilogue == Epilogue::swiglu ? p.rows / 2 : p.split;
    const int piece = thread % pieces;
    if (column + piece * 8 >= columns) return;
#pragma unroll 4
    for (int t = thread / pieces; t < tile.count; t += threads / pieces) {
      const uint4 value =
          load_shared16(staging + static_cast<std::uint32_t>((t * pieces + (piece ^ (t & 7))) * 16));
      __half* to = p.y + static_cast<std::size_t>(tile.first + t) * p.stride + (column + piece * 8);
      *reinterpret_cast<uint4*>(to) = value;
    }
  }
}

}  // namespace calla::cuda
