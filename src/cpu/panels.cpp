#include "cpu/panels.h"

#include <array>
#include <cassert>
#include <cstdint>
#include <cstring>

namespace calla::cpu {
namespace {

/// A row of one of the matrices; null where there is none.
struct RowSource {
  const std::byte* words = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
};

RowSource source(const AffineMatrix& matrix, int row) {
  const auto words = static_cast<std::size_t>(matrix.words_per_row()) * sizeof(std::uint32_t);
  const auto groups = static_cast<std::size_t>(matrix.groups()) * sizeof(std::uint16_t);
  const auto index = static_cast<std::size_t>(row);
  return {matrix.words.data() + index * words, matrix.scales.data() + index * groups,
          matrix.biases.data() + index * groups};
}

template <class T>
T read(const std::byte* from, std::size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

using Line = std::array<std::uint32_t, panel_rows>;

/// One group of a panel: a transposition of 16 rows of `lines` words.
template <std::size_t lines>
void pack_group(const std::array<RowSource, panel_rows>& rows, std::size_t group, std::byte* out) {
  std::array<Line, 1 + lines> packed{};
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].words == nullptr) continue;
    packed[0][r] = std::uint32_t{read<std::uint16_t>(rows[r].scales, group)} << 16U |
                   read<std::uint16_t>(rows[r].biases, group);
    for (std::size_t j = 0; j < lines; ++j)
      packed[1 + j][r] = read<std::uint32_t>(rows[r].words, group * lines + j);
  }
  std::memcpy(out, packed.data(), sizeof(packed));
}

}  // namespace

void pack_panel(std::span<const AffineMatrix* const> matrices, int first, std::byte* out) {
  assert(!matrices.empty());
  std::array<RowSource, panel_rows> rows{};
  int begin = 0;  // of the current matrix, among all rows
  for (const AffineMatrix* matrix : matrices) {
    assert(matrix->columns == matrices.front()->columns && matrix->bits == matrices.front()->bits);
    for (int r = 0; r < panel_rows; ++r) {
      const int row = first + r - begin;
      if (row >= 0 && row < matrix->rows) rows[static_cast<std::size_t>(r)] = source(*matrix, row);
    }
    begin += matrix->rows;
  }
  constexpr std::size_t nibble_lines = 8;
  constexpr std::size_t byte_lines = 16;
  const auto groups = static_cast<std::size_t>(matrices.front()->groups());
  const bool nibbles = matrices.front()->bits == 4;
  const std::size_t step = panel_bytes(matrices.front()->columns, matrices.front()->bits) / groups;
  for (std::size_t group = 0; group < groups; ++group, out += step) {
    if (nibbles) {
      pack_group<nibble_lines>(rows, group, out);
    } else {
      pack_group<byte_lines>(rows, group, out);
    }
  }
}

void pack_panel(const AffineMatrix& matrix, int first, std::byte* out) {
  const AffineMatrix* only = &matrix;
  pack_panel(std::span(&only, 1), first, out);
}

}  // namespace calla::cpu
