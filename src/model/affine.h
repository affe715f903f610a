// The checkpoint's quantised format, MLX "affine": a row of weights in groups of 64 columns, each group with
// a scale s and a bias b, w = s * q + b with q an unsigned integer of 4 or 8 bits.
//
// Packing: element c of a row lies in 32-bit word c / (32 / bits), at bit position bits * (c mod (32 /
// bits)): the lowest nibble or byte first. Scales and biases are bfloat16, row-major [rows, columns / 64].
//
// A view reads the bytes of the file as they are: a safetensors file promises no alignment, so words and
// bfloat16 values are loaded through memcpy, which costs nothing where the hardware allows it.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "model/shape.h"

namespace calla {

static_assert(std::endian::native == std::endian::little,
              "the checkpoint is little-endian and read in place");

constexpr float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

/// One quantised matrix [rows, columns], a view of three tensors of a checkpoint.
struct AffineMatrix {
  int rows = 0;
  int columns = 0;
  int bits = 0;                       // 4 or 8
  std::span<const std::byte> words;   // u32  [rows, columns * bits / 32]
  std::span<const std::byte> scales;  // bf16 [rows, columns / 64]
  std::span<const std::byte> biases;  // bf16 [rows, columns / 64]

  int words_per_row() const { return columns * bits / 32; }
  int groups() const { return columns / Shape::quantization_group; }
  std::size_t bytes() const { return words.size() + scales.size() + biases.size(); }

  std::uint32_t word(int row, int index) const {
    return load<std::uint32_t>(words, static_cast<std::size_t>(row) * words_per_row() + index);
  }
  float scale(int row, int group) const {
    return bf16_to_float(load<std::uint16_t>(scales, static_cast<std::size_t>(row) * groups() + group));
  }
  float bias(int row, int group) const {
    return bf16_to_float(load<std::uint16_t>(biases, static_cast<std::size_t>(row) * groups() + group));
  }

 private:
  template <class T>
  static T load(std::span<const std::byte> bytes, std::size_t index) {
    T value;
    std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
    return value;
  }
};

/// Writes row `row` as float32 into `out` [columns]. s * q is exact in float32 (8 bits times 8 bits), so the
/// sum is rounded once and equals mlx.dequantize bit for bit.
void dequantize_row(const AffineMatrix& matrix, int row, std::span<float> out);

/// A stack of equal matrices, one an expert, stored one after another.
struct ExpertStack {
  int experts = 0;
  AffineMatrix all;  // the stack as one matrix [experts * rows, columns]

  AffineMatrix expert(int index) const;
};

}  // namespace calla
