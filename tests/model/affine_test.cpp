#include "model/affine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace calla {
namespace {

/// A matrix that owns its bytes, at any offset from an aligned address.
class Fixture {
 public:
  Fixture(int rows, int columns, int bits, const std::vector<std::uint32_t>& words,
          const std::vector<float>& scales, const std::vector<float>& biases, std::size_t offset = 0)
      : words_(stored(words, offset)),
        scales_(stored(bf16(scales), offset)),
        biases_(stored(bf16(biases), offset)) {
    const auto from = [&](const std::vector<std::byte>& bytes) { return std::span(bytes).subspan(offset); };
    matrix = {.rows = rows,
              .columns = columns,
              .bits = bits,
              .words = from(words_),
              .scales = from(scales_),
              .biases = from(biases_)};
  }

  std::vector<float> row(int index) const {
    std::vector<float> out(static_cast<std::size_t>(matrix.columns));
    dequantize_row(matrix, index, out);
    return out;
  }

  AffineMatrix matrix;

 private:
  /// Every number of the fixtures is a bfloat16 exactly: its upper half is all of it.
  static std::vector<std::uint16_t> bf16(const std::vector<float>& values) {
    std::vector<std::uint16_t> out;
    for (const float value : values) {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      EXPECT_EQ(bits & 0xFFFFU, 0U) << value << " is no bfloat16";
      out.push_back(static_cast<std::uint16_t>(bits >> 16U));
    }
    return out;
  }
  template <class T>
  static std::vector<std::byte> stored(const std::vector<T>& values, std::size_t offset) {
    std::vector<std::byte> bytes(offset + values.size() * sizeof(T));
    std::memcpy(bytes.data() + offset, values.data(), values.size() * sizeof(T));
    return bytes;
  }

  std::vector<std::byte> words_;
  std::vector<std::byte> scales_;
  std::vector<std::byte> biases_;
};

// The fixtures were recorded from mlx.dequantize.
const std::vector<std::uint32_t> ramp_words{571543808,  1144206114, 1716868420, 2289530726,
                                            2862193032, 3434855338, 4007517644, 4294967278};

Fixture gauss(std::size_t offset) {
  return {2,
          128,
          4,
          {3163982472, 1416660550, 2530789750, 1972786571, 3683031463, 4252614100, 2494056926, 1850172585,
           2819284601, 4172693100, 3668133737, 3377915877, 1204433769, 2257626427, 3418184344, 2472032443,
           3656033623, 2864373982, 2564199050, 93993334,   966756235,  2343345615, 2337833683, 1115350967,
           2808465291, 1484432486, 2543249607, 2788750968, 1180142519, 1348687307, 4154292859, 2859174231},
          {0.291015625F, 0.28125F, 0.265625F, 0.388671875F},
          {-2.328125F, -2.25F, -2.390625F, -3.109375F},
          offset};
}

std::vector<float> part(const std::vector<float>& values, std::size_t begin, std::size_t count) {
  return {values.begin() + static_cast<std::ptrdiff_t>(begin),
          values.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

TEST(Affine, WidensBfloat16) {
  EXPECT_EQ(bf16_to_float(0x3F80), 1.0F);
  EXPECT_EQ(bf16_to_float(0xC000), -2.0F);
  EXPECT_EQ(bf16_to_float(0x0001), std::ldexp(1.0F, -133)) << "a denormal";
  EXPECT_TRUE(std::isinf(bf16_to_float(0x7F80)));
  EXPECT_TRUE(std::isnan(bf16_to_float(0x7FC0)));
}

TEST(Affine, RampIsLowestNibbleFirst) {
  std::vector<float> expected(2, -16.0F);
  for (int value = -14; value <= 12; value += 2)
    expected.insert(expected.end(), 4, static_cast<float>(value));
  expected.insert(expected.end(), 6, 14.0F);
  EXPECT_EQ(Fixture(1, 64, 4, ramp_words, {2.0F}, {-16.0F}).row(0), expected);
}

TEST(Affine, ConstantRowIsItsBias) {
  const float scale = bf16_to_float(0xB3D7);
  ASSERT_EQ(scale, -1.0011717677116394e-07F);
  EXPECT_EQ(Fixture(1, 64, 4, std::vector<std::uint32_t>(8, 0), {scale}, {3.25F}).row(0),
            std::vector<float>(64, 3.25F));
}

TEST(Affine, GaussAgreesWithMlx) {
  const Fixture fixture = gauss(0);
  const auto row0 = fixture.row(0);
  const auto row1 = fixture.row(1);
  EXPECT_EQ(part(row0, 0, 8),
            (std::vector<float>{0, 0, 0.58203125F, 0, -0.58203125F, 0.291015625F, 1.1640625F, 0.873046875F}));
  EXPECT_EQ(part(row0, 64, 8),
            (std::vector<float>{0.28125F, -0.28125F, 1.6875F, 1.40625F, 0.5625F, -2.25F, 0, 0.5625F}));
  EXPECT_EQ(part(row1, 0, 8),
            (std::vector<float>{-0.53125F, -1.0625F, -1.0625F, 0.265625F, 0.265625F, 1.328125F, 0, 1.0625F}));
  EXPECT_EQ(part(row1, 120, 8), (std::vector<float>{-0.388671875F, -1.166015625F, 0.388671875F, 0,
                                                    1.166015625F, -0.77734375F, 0.77734375F, 0.77734375F}));
  EXPECT_EQ(std::accumulate(row0.begin(), row0.end(), std::accumulate(row1.begin(), row1.end(), 0.0)),
            -1.267578125);
}

TEST(Affine, EightBitRampIsLowestByteFirst) {
  const Fixture fixture(
      1, 64, 8,
      {201851904, 471340048, 757671201, 1027159345, 1296647489, 1566135633, 1852466786, 2121954930,
       2391443074, 2660931218, 2947262371, 3216750515, 3486238659, 3755726803, 4042057956, 4294768884},
      {0.123046875F}, {-16.0F});
  const auto row = fixture.row(0);
  EXPECT_EQ(part(row, 0, 9), (std::vector<float>{-16, -15.5078125F, -15.015625F, -14.5234375F, -14.03125F,
                                                 -13.5390625F, -13.046875F, -12.5546875F, -11.939453125F}));
  EXPECT_EQ(part(row, 60, 4), (std::vector<float>{14.0234375F, 14.515625F, 15.0078125F, 15.376953125F}));
  EXPECT_EQ(std::accumulate(row.begin(), row.end(), 0.0), -16.123046875);
}

TEST(Affine, ReadsTheSameAtEveryAlignment) {
  const Fixture aligned = gauss(0);
  for (const std::size_t offset : {1U, 2U, 3U}) {
    const Fixture shifted = gauss(offset);
    for (const int row : {0, 1}) EXPECT_EQ(shifted.row(row), aligned.row(row)) << "offset " << offset;
  }
}

TEST(Affine, CountsItsWordsGroupsAndBytes) {
  const Fixture fixture = gauss(0);
  EXPECT_EQ(fixture.matrix.words_per_row(), 16);
  EXPECT_EQ(fixture.matrix.groups(), 2);
  EXPECT_EQ(fixture.matrix.bytes(), 2U * (16 * 4 + 2 * 2 + 2 * 2));
}

TEST(Affine, AStackGivesEachExpertItsRows) {
  const Fixture fixture = gauss(0);
  const ExpertStack stack{.experts = 2, .all = fixture.matrix};
  for (int expert = 0; expert < 2; ++expert) {
    const AffineMatrix matrix = stack.expert(expert);
    EXPECT_EQ(matrix.rows, 1);
    std::vector<float> out(128);
    dequantize_row(matrix, 0, out);
    EXPECT_EQ(out, fixture.row(expert));
  }
}

}  // namespace
}  // namespace calla
