#include "model/affine.h"

#include <cassert>

namespace calla {
namespace {
template <int Bits>
void dequantize_row(const AffineMatrix& matrix, int row, std::span<float> out) {
  constexpr int per_word = 32 / Bits;
  constexpr int group = Shape::quantization_group;
  constexpr std::uint32_t mask = (1U << Bits) - 1;
  for (int g = 0; g < matrix.groups(); ++g) {
    const float scale = matrix.scale(row, g);
    const float bias = matrix.bias(row, g);
    float* const values = out.data() + static_cast<std::size_t>(g) * group;
    for (int w = 0; w < group / per_word; ++w) {
      const std::uint32_t word = matrix.word(row, g * (group / per_word) + w);
      for (int i = 0; i < per_word; ++i) {
        values[w * per_word + i] = scale * static_cast<float>((word >> (Bits * i)) & mask) + bias;
      }
    }
  }
}
}  // namespace

void dequantize_row(const AffineMatrix& matrix, int row, std::span<float> out) {
  assert(row >= 0 && row < matrix.rows && out.size() == static_cast<std::size_t>(matrix.columns));
  matrix.bits == 4 ? dequantize_row<4>(matrix, row, out) : dequantize_row<8>(matrix, row, out);
}

AffineMatrix ExpertStack::expert(int index) const {
  assert(index >= 0 && index < experts);
  const auto part = [&](std::span<const std::byte> bytes) {
    const std::size_t size = bytes.size() / static_cast<std::size_t>(experts);
    return bytes.subspan(size * static_cast<std::size_t>(index), size);
  };
  return {.rows = all.rows / experts,
          .columns = all.columns,
          .bits = all.bits,
          .words = part(all.words),
          .scales = part(all.scales),
          .biases = part(all.biases)};
}

}  // namespace calla
