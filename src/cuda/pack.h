// From rows as the checkpoint has them to the forms of tiles.h, on the device.
#pragma once
#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "cuda/tiles.h"

namespace calla::cuda {

/// 4-bit rows in device memory, each array where 16 bytes align.
struct StagedRows {
  const std::uint32_t* words = nullptr;   // [rows][columns / 8], the lowest nibble first
  const std::uint16_t* scales = nullptr;  // bfloat16 [rows][columns / 64]
  const std::uint16_t* biases = nullptr;  // bfloat16 [rows][columns / 64]
  int rows = 0;
  int columns = 0;
};

/// Writes the tiles of the rows, [tiles_of_rows(rows)][tiles_of_columns(columns)]; rows that are missing to
/// the last tile's sixteen are zero.
void launch_pack_tiles(const StagedRows& rows, std::byte* tiles, cudaStream_t stream);

/// Writes {scale, bias} pairs, the scale in the low half.
void launch_pack_pairs(const std::uint16_t* scales, const std::uint16_t* biases, std::uint32_t* pairs,
                       int count, cudaStream_t stream);

/// Rows of tiles that planes_of() makes of a count of rows of 8 bits.
inline constexpr int code_planes = 2;
constexpr int plane_rows(int rows) { return code_planes * tiles_of_rows(rows) * tile_rows; }

/// Writes 8-bit rows as 4-bit tiles: for each 16 rows a row of tiles of the codes' low halves, then one of
/// their high halves with scales sixteen times as large and no biases. The sum of both products is that of
/// the rows.
void launch_pack_planes(const ByteRows& rows, std::byte* tiles, cudaStream_t stream);

}  // namespace calla::cuda
