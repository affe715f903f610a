// The form of 4-bit matrices in device memory, for the matrix instruction m16n8k16 with the weights as its A
// operand; the same tiles serve decode, where the other operand's columns are slots, and prefill, where they
// are tokens.
//
// A tile is 16 rows x 64 columns (one scale group), 576 bytes:
//   512 B  codes: lane l of a warp owns the 16 bytes at 16 l, four words; word h is its fragment of the
//   product
//          over columns 16 h .. 16 h + 15. With g = l / 4, t = l % 4 and k = 16 h + 2 t, the nibbles of a
//          word, lowest first, are the codes at
//            (row g, k) (row g + 8, k) (row g, k + 8) (row g + 8, k + 8)
//            (row g, k + 1) (row g + 8, k + 1) (row g, k + 9) (row g + 8, k + 9),
//          so that a mask leaves two neighbours of a row in the halves of a word.
//    64 B  scales: for g = 0 .. 7, {scale, bias} of row g and of row g + 8, bfloat16.
// A matrix [rows, columns] is its tiles in the order [row / 16][column / 64]. Rows are padded with zeros to a
// multiple of 16.
#pragma once
#include <cstddef>
#include <cstdint>

namespace calla::cuda {

inline constexpr int tile_rows = 16;
inline constexpr int tile_columns = 64;
inline constexpr int tile_code_bytes = 512;
inline constexpr int tile_bytes = 576;

constexpr int tiles_of_rows(int rows) { return (rows + tile_rows - 1) / tile_rows; }
constexpr int tiles_of_columns(int columns) { return columns / tile_columns; }
constexpr std::size_t tiled_bytes(int rows, int columns) {
  return static_cast<std::size_t>(tiles_of_rows(rows)) * static_cast<std::size_t>(tiles_of_columns(columns)) *
         tile_bytes;
}

/// A matrix of tiles in device memory.
struct Tiles {
  const std::byte* data = nullptr;
  int rows = 0;  // a multiple of 16, padding included
  int columns = 0;
};

/// Equal matrices one behind the other, one an expert.
struct TileStack {
  const std::byte* data = nullptr;
  int experts = 0;
  int rows = 0;
  int columns = 0;
};

// Gate and up projections share a matrix: rows 16 i .. 16 i + 7 are rows 8 i .. 8 i + 7 of gate, the next
// eight the same rows of up, so that a thread's two accumulator rows are the gate and up of one channel.

/// 8-bit matrices (the router with the shared expert's gate behind it): row-major codes [rows][columns], then
/// per row and group {scale, bias} bfloat16 [rows][columns / 64].
struct ByteRows {
  const std::uint8_t* codes = nullptr;
  const std::uint32_t* scales = nullptr;  // low half: scale, high half: bias
  int rows = 0;
  int columns = 0;
};

}  // namespace calla::cuda
