// What the tests of prefill's products and experts share: quantised matrices, and what their products must
// be.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "metal/device.h"
#include "metal/mixer_support.h"
#include "model/affine.h"

namespace calla::metal {

constexpr std::size_t index(unsigned value) { return value; }

/// Weights of about unit deviation times 0.3, in the checkpoint's format.
struct TestMatrix {
  TestMatrix(unsigned row_count, unsigned column_count, int code_bits, unsigned seed)
      : rows(row_count), columns(column_count), bits(code_bits) {
    std::mt19937 random(seed);
    words.resize(std::size_t{rows} * columns * static_cast<unsigned>(bits) / 32);
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
    scales.resize(std::size_t{rows} * columns / 64);
    biases.resize(scales.size());
    std::uniform_real_distribution<float> factor(0.5F, 1.5F);
    const float step = 1.0F / static_cast<float>(1 << bits);
    for (std::size_t i = 0; i < scales.size(); ++i) {
      scales[i] = bf16(step * factor(random) * (random() % 4 == 0 ? -1.0F : 1.0F));
      biases[i] = bf16(-0.5F * bf16_to_float(scales[i]) * static_cast<float>(1 << bits) * factor(random));
    }
  }

  AffineMatrix view() const {
    return {.rows = static_cast<int>(rows),
            .columns = static_cast<int>(columns),
            .bits = bits,
            .words = std::as_bytes(std::span(words)),
            .scales = std::as_bytes(std::span(scales)),
            .biases = std::as_bytes(std::span(biases))};
  }
  std::vector<float> row(unsigned r) const {
    std::vector<float> values(columns);
    dequantize_row(view(), static_cast<int>(r), values);
    return values;
  }

  unsigned rows;
  unsigned columns;
  int bits;
  std::vector<std::uint32_t> words;
  std::vector<std::uint16_t> scales;
  std::vector<std::uint16_t> biases;

 private:
  static std::uint16_t bf16(float x) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
  }
};

/// A matrix on the device.
struct DeviceMatrix {
  DeviceMatrix(Gpu& gpu, const TestMatrix& matrix)
      : words(gpu.upload(matrix.words)),
        scales(gpu.upload(matrix.scales)),
        biases(gpu.upload(matrix.biases)) {}

  std::unique_ptr<Buffer> words;
  std::unique_ptr<Buffer> scales;
  std::unique_ptr<Buffer> biases;
};

inline float round_to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U);
}

/// What a kernel multiplies.
enum class Operands { exact, bfloat16 };

/// A dot product in double, and what its float32 sum may be off by: no partial sum is larger than the sum of
/// magnitudes m, and n roundings of up to m 2^-25 add up like a random walk, to sqrt(n) m 2^-25 = 1.4e-6 m at
/// n = 2,048.
struct Dot {
  Dot(std::span<const float> x, std::span<const float> w, Operands operands = Operands::exact) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double product = operands == Operands::exact ? double{x[i]} * w[i]
                                                         : double{round_to_bf16(x[i])} * round_to_bf16(w[i]);
      value += product;
      tolerance += 2e-6 * std::abs(product);
    }
  }

  double value = 0;
  double tolerance = 0;
};

inline std::span<const float> row_of(const std::vector<float>& rows, std::size_t row, std::size_t width) {
  return std::span(rows).subspan(row * width, width);
}

inline double silu_of(double x) { return x / (1.0 + std::exp(-x)); }

}  // namespace calla::metal
