#include "reference/ops.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace calla::reference {
namespace {

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

double relative_error(std::span<const float> actual, std::span<const double> expected) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{actual[i]} - expected[i], 2);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

/// A quantised matrix of random words, scales and biases, with its own storage.
struct RandomMatrix {
  RandomMatrix(int rows, int columns, int bits, unsigned seed) {
    std::mt19937 random(seed);
    words.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns * bits / 32));
    for (auto& word : words) word = static_cast<std::uint32_t>(random());
    scales.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns / 64));
    biases.resize(scales.size());
    std::uniform_real_distribution<float> uniform(-0.1F, 0.1F);
    const auto bf16 = [&] {
      return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(uniform(random)) >> 16);
    };
    for (auto& scale : scales) scale = bf16();
    for (auto& bias : biases) bias = bf16();
    matrix = {.rows = rows,
              .columns = columns,
              .bits = bits,
              .words = std::as_bytes(std::span(words)),
              .scales = std::as_bytes(std::span(scales)),
              .biases = std::as_bytes(std::span(biases))};
  }
  std::vector<std::uint32_t> words;
  std::vector<std::uint16_t> scales, biases;
  AffineMatrix matrix;
};

TEST(Ops, DotOfAnyLength) {
  for (const std::size_t length : {0U, 1U, 15U, 16U, 17U, 100U, 4096U}) {
    const auto x = random_floats(length, 1);
    const auto y = random_floats(length, 2);
    double expected = 0;
    for (std::size_t i = 0; i < length; ++i) expected += double{x[i]} * double{y[i]};
    EXPECT_NEAR(dot(x, y), expected, 1e-5 * std::sqrt(static_cast<double>(length) + 1)) << length;
  }
}

TEST(Ops, LinearIsTheProductWithTheDequantisedMatrix) {
  for (const int bits : {4, 8}) {
    const RandomMatrix w(24, 192, bits, 5);
    const int tokens = 3;
    const auto x = random_floats(static_cast<std::size_t>(tokens * 192), 6);
    std::vector<double> expected;
    for (int t = 0; t < tokens; ++t) {
      for (int r = 0; r < 24; ++r) {
        double sum = 0;
        for (int c = 0; c < 192; ++c) {
          const int per_word = 32 / bits;
          const std::uint32_t q =
              (w.matrix.word(r, c / per_word) >> (bits * (c % per_word))) & ((1U << bits) - 1);
          const double weight = double{w.matrix.scale(r, c / 64)} * q + double{w.matrix.bias(r, c / 64)};
          sum += weight * double{x[static_cast<std::size_t>(t * 192 + c)]};
        }
        expected.push_back(sum);
      }
    }
    EXPECT_LT(relative_error(linear(w.matrix, x), expected), 1e-6) << bits << " bits";
  }
}

TEST(Ops, RmsNormOfEachRow) {
  const auto x = random_floats(3 * 128, 8);
  const auto gain = random_floats(128, 9);
  std::vector<double> expected;
  for (std::size_t row = 0; row < 3; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < 128; ++i) squares += double{x[row * 128 + i]} * double{x[row * 128 + i]};
    for (std::size_t i = 0; i < 128; ++i) {
      expected.push_back(double{x[row * 128 + i]} / std::sqrt(squares / 128 + 1e-6) * double{gain[i]});
    }
  }
  EXPECT_LT(relative_error(rms_norm(x, gain), expected), 1e-6);
}

TEST(Ops, L2NormaliseGivesTheWantedLength) {
  auto x = random_floats(128, 10);
  l2_normalise(x, 0.5F);
  EXPECT_NEAR(std::sqrt(dot(x, x)), 0.5F, 1e-6F);
  std::vector<float> zero(128, 0.0F);
  l2_normalise(zero, 1.0F);
  EXPECT_EQ(dot(zero, zero), 0.0F);
}

TEST(Ops, SoftmaxSumsToOneAndBearsLargeLogits) {
  std::vector<float> x{1000.0F, 1001.0F, 999.0F};
  softmax(x);
  EXPECT_NEAR(x[0] + x[1] + x[2], 1.0F, 1e-6F);
  EXPECT_NEAR(x[1] / x[0], std::exp(1.0F), 1e-5F);
}

TEST(Ops, ActivationsAtTheirExtremes) {
  EXPECT_EQ(sigmoid(0), 0.5F);
  EXPECT_EQ(sigmoid(-200), 0.0F);
  EXPECT_EQ(sigmoid(200), 1.0F);
  EXPECT_EQ(silu(-200), 0.0F);
  EXPECT_NEAR(softplus(0), std::log(2.0F), 1e-7F);
  EXPECT_EQ(softplus(100), 100.0F);
  EXPECT_GT(softplus(-50), 0.0F) << "a tiny decay is not none";
}

}  // namespace
}  // namespace calla::reference
