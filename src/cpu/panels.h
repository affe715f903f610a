// The layout of quantised weights that the kernels stream: panels of 16 output rows.
//
// For each panel, for each group of 64 columns, lines of 64 bytes:
//   line 0      dword r = (scale of row r, bfloat16) << 16 | (bias of row r, bfloat16)      r = 0 .. 15
//   line 1 + j  dword r = 32-bit word j of this group in row r, as the checkpoint has it    8 or 16 lines
// 576 bytes for 1,024 weights of 4 bits: not one byte more than the checkpoint's. Panels follow each other in
// the order in which they are read. Rows that a matrix lacks to a whole panel are zero.
#pragma once
#include <cstddef>
#include <span>

#include "model/affine.h"

namespace calla::cpu {

constexpr int panel_rows = 16;

constexpr int panel_count(int rows) { return (rows + panel_rows - 1) / panel_rows; }

constexpr std::size_t panel_bytes(int columns, int bits) {
  constexpr std::size_t line = 64;
  const auto groups = static_cast<std::size_t>(columns / Shape::quantization_group);
  return groups * line * static_cast<std::size_t>(1 + Shape::quantization_group * bits / 32);
}

/// Packed weights of equal columns, a view: the panels of one matrix or of several, one after another.
struct Panels {
  const std::byte* data = nullptr;
  int count = 0;  // panels
  int columns = 0;
  int bits = 4;

  std::size_t stride() const { return panel_bytes(columns, bits); }
  const std::byte* panel(int index) const { return data + static_cast<std::size_t>(index) * stride(); }
};

/// Writes the panel of rows [first, first + 16) of `matrix` to `out`, panel_bytes() long.
void pack_panel(const AffineMatrix& matrix, int first, std::byte* out);

/// The same for the rows of several matrices of equal columns and bits, as if they stood below each other.
void pack_panel(std::span<const AffineMatrix* const> matrices, int first, std::byte* out);

}  // namespace calla::cpu
