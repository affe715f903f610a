#include "cpu/panels.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace calla::cpu {
namespace {

/// A matrix in which every number tells where it is.
struct Numbered {
  Numbered(int rows, int columns, int bits, std::uint32_t mark) {
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < columns * bits / 32; ++i)
        words.push_back(mark << 24U | static_cast<std::uint32_t>(r) << 12U | static_cast<std::uint32_t>(i));
      for (int g = 0; g < columns / 64; ++g) {
        scales.push_back(static_cast<std::uint16_t>(r << 4 | g));
        biases.push_back(static_cast<std::uint16_t>(0x8000 | r << 4 | g));
      }
    }
    matrix = {.rows = rows,
              .columns = columns,
              .bits = bits,
              .words = std::as_bytes(std::span(words)),
              .scales = std::as_bytes(std::span(scales)),
              .biases = std::as_bytes(std::span(biases))};
  }
  std::vector<std::uint32_t> words;
  std::vector<std::uint16_t> scales;
  std::vector<std::uint16_t> biases;
  AffineMatrix matrix;
};

std::vector<std::uint32_t> packed(std::span<const AffineMatrix* const> matrices, int first) {
  std::vector<std::uint32_t> dwords(panel_bytes(matrices.front()->columns, matrices.front()->bits) / 4,
                                    0xdeadbeef);
  pack_panel(matrices, first, reinterpret_cast<std::byte*>(dwords.data()));
  return dwords;
}

TEST(Panels, HaveTheCheckpointsBytesAndNoMore) {
  EXPECT_EQ(panel_bytes(64, 4), 576U);
  EXPECT_EQ(panel_bytes(2048, 4), 32U * 576);
  EXPECT_EQ(panel_bytes(2048, 8), 32U * 17 * 64);
  EXPECT_EQ(panel_count(256 + 1), 17);
}

TEST(Panels, ALineHoldsOneWordOfSixteenRows) {
  for (const int bits : {4, 8}) {
    const Numbered w(32, 128, bits, 1);
    const AffineMatrix* only = &w.matrix;
    const std::vector<std::uint32_t> panel = packed(std::span(&only, 1), 16);
    const std::size_t lines = bits == 4 ? 8 : 16;
    for (std::size_t g = 0; g < 2; ++g) {
      const std::uint32_t* group = panel.data() + g * (1 + lines) * 16;
      for (std::size_t r = 0; r < 16; ++r) {
        EXPECT_EQ(group[r] >> 16U, (16 + r) << 4U | g);
        EXPECT_EQ(group[r] & 0xffffU, 0x8000U | (16 + r) << 4U | g);
        for (std::size_t j = 0; j < lines; ++j)
          EXPECT_EQ(group[(1 + j) * 16 + r],
                    w.matrix.word(16 + static_cast<int>(r), static_cast<int>(g * lines + j)));
      }
    }
  }
}

TEST(Panels, RowsOfSeveralMatricesStandBelowEachOther) {
  const Numbered a(20, 64, 4, 1);
  const Numbered b(5, 64, 4, 2);
  const Numbered c(3, 64, 4, 3);
  const std::vector<const AffineMatrix*> all{&a.matrix, &b.matrix, &c.matrix};
  const std::vector<std::uint32_t> panel = packed(all, 16);  // rows 16 .. 31 of 28
  const auto word = [&](std::size_t row) { return panel[16 + row]; };
  EXPECT_EQ(word(0), a.matrix.word(16, 0));
  EXPECT_EQ(word(3), a.matrix.word(19, 0));
  EXPECT_EQ(word(4), b.matrix.word(0, 0));
  EXPECT_EQ(word(8), b.matrix.word(4, 0));
  EXPECT_EQ(word(9), c.matrix.word(0, 0));
  EXPECT_EQ(word(11), c.matrix.word(2, 0));
  for (std::size_t row = 12; row < 16; ++row) {
    EXPECT_EQ(word(row), 0U);
    EXPECT_EQ(panel[row], 0U) << "scale and bias too";
  }
}

}  // namespace
}  // namespace calla::cpu
