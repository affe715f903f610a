// Every kernel of every instruction set that this machine has, on random inputs, against float64.
#include "cpu/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cpu/kv_cache.h"
#include "cpu/panels.h"
#include "reference/ops.h"

namespace calla::cpu {
namespace {

std::vector<Level> levels_here() {
  std::vector<Level> levels;
  for (const Level level : {Level::portable, Level::avx2, Level::avx512}) {
    if (kernels(level) != nullptr) levels.push_back(level);
  }
  return levels;
}

std::string level_name(const testing::TestParamInfo<Level>& level) {
  std::string name = kernels(level.param)->name;
  std::erase(name, '-');
  return name;
}

class Kernels : public testing::TestWithParam<Level> {
 protected:
  const KernelTable& k = *kernels(GetParam());
  std::mt19937 random{7};

  std::vector<float> normals(std::size_t count, float sigma = 1) {
    std::normal_distribution<float> normal(0, sigma);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
  }
};
INSTANTIATE_TEST_SUITE_P(Here, Kernels, testing::ValuesIn(levels_here()), level_name);

/// A quantised matrix of random codes, scales of both signs and biases; some groups are constant or zero.
struct RandomMatrix {
  RandomMatrix(std::mt19937& random, int rows, int columns, int bits) {
    const auto words_count = static_cast<std::size_t>(rows * columns * bits / 32);
    const auto groups = static_cast<std::size_t>(rows * columns / 64);
    words.resize(words_count);
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
    std::uniform_real_distribution<float> size(-0.02F, 0.02F);
    for (std::size_t g = 0; g < groups; ++g) {
      const float scale = g % 17 == 3 ? 0.0F : size(random);
      scales.push_back(bf16(scale));
      biases.push_back(bf16(g % 23 == 5 ? 0.0F : -7.5F * scale + size(random)));
    }
    matrix = {.rows = rows,
              .columns = columns,
              .bits = bits,
              .words = std::as_bytes(std::span(words)),
              .scales = std::as_bytes(std::span(scales)),
              .biases = std::as_bytes(std::span(biases))};
  }
  static std::uint16_t bf16(float value) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
  }
  std::vector<std::uint32_t> words;
  std::vector<std::uint16_t> scales;
  std::vector<std::uint16_t> biases;
  AffineMatrix matrix;
};

struct Quantised {
  Quantised(const KernelTable& k, std::span<const float> x, int rows, int columns, int planes)
      : values(static_cast<std::size_t>(rows * columns * planes)),
        factors(static_cast<std::size_t>(rows * columns / 32)),
        view{values.data(), factors.data(), columns, planes} {
    for (int row = 0; row < rows; ++row) {
      k.quantise(x.data() + row * columns, columns / 64, planes, values.data() + row * columns * planes,
                 factors.data() + row * columns / 32);
    }
  }
  /// What the integers stand for.
  double at(int row, int column) const {
    const int group = column / 64;
    const int c = column % 64;
    const auto base = static_cast<std::size_t>((row * view.columns / 64 + group) * view.planes * 64);
    const auto within = static_cast<std::size_t>(c % 2 * 32 + c / 2);
    const double scale = factors[static_cast<std::size_t>((row * view.columns / 64 + group) * 2)];
    const int high = values[base + within];
    return scale * (view.planes == 2 ? 128 * high + values[base + 64 + within] : high);
  }
  std::vector<std::int8_t> values;
  std::vector<float> factors;
  QuantisedRows view;
};

TEST_P(Kernels, QuantisedRowsStandForTheirInput) {
  for (const int columns : {64, 512, 2048}) {
    std::vector<float> x = normals(static_cast<std::size_t>(2 * columns));
    std::fill_n(x.begin(), 64, 0.0F);  // a group of zeros
    x[70 % x.size()] = 1000;           // and a giant
    for (const int planes : {1, 2}) {
      const Quantised q(k, x, 2, columns, planes);
      for (int row = 0; row < 2; ++row) {
        for (int g = 0; g < columns / 64; ++g) {
          const auto group = std::span(x).subspan(static_cast<std::size_t>(row * columns + g * 64), 64);
          float peak = 0;
          for (const float value : group) peak = std::max(peak, std::abs(value));
          double total = 0;
          for (int c = 0; c < 64; ++c) {
            const double value = q.at(row, g * 64 + c);
            total += value;
            EXPECT_NEAR(value, group[static_cast<std::size_t>(c)],
                        peak / (planes == 2 ? 16256 : 127) * 0.501);
          }
          const double sum = q.factors[static_cast<std::size_t>((row * columns / 64 + g) * 2 + 1)];
          EXPECT_NEAR(sum, total, 1e-5 * (1 + peak)) << "the sum of what is multiplied, not of the input";
        }
      }
    }
  }
}

TEST_P(Kernels, ANaNStaysOne) {
  std::vector<float> x = normals(64);
  for (const float poison :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    x[37] = poison;
    const RandomMatrix w(random, 16, 64, 4);
    std::vector<std::byte> panel(panel_bytes(64, 4));
    pack_panel(w.matrix, 0, panel.data());
    const Quantised q(k, x, 1, 64, 2);
    std::vector<float> out(16);
    const std::int32_t row = 0;
    k.linear4(panel.data(), q.view, &row, 1, out.data());
    for (const float value : out) EXPECT_FALSE(std::isfinite(value));
  }
}

TEST_P(Kernels, ProductsOfNibblesAreExactButForTheFloatSum) {
  for (const int columns : {64, 512, 2048, 4096}) {
    const RandomMatrix w(random, 16, columns, 4);
    std::vector<std::byte> panel(panel_bytes(columns, 4));
    pack_panel(w.matrix, 0, panel.data());
    std::vector<float> weights(static_cast<std::size_t>(16 * columns));
    for (int r = 0; r < 16; ++r)
      dequantize_row(w.matrix, r,
                     std::span(weights).subspan(static_cast<std::size_t>(r * columns),
                                                static_cast<std::size_t>(columns)));
    constexpr int most = 19;
    std::vector<float> x = normals(static_cast<std::size_t>(most * columns));
    std::fill_n(x.begin(), 64, 0.0F);
    std::fill_n(x.begin() + columns, 64, 127.0F);  // the largest integers, all of one sign
    for (const int planes : {1, 2}) {
      const Quantised q(k, x, most, columns, planes);
      for (const int count : columns > 512
                                 ? std::vector<int>{1, 2, 3, 8, 17}
                                 : std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 18, 19}) {
        std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
        for (int i = 0; i < count; ++i) rows[static_cast<std::size_t>(i)] = (i * 7 + 3) % most;  // any order
        std::vector<float> out(static_cast<std::size_t>(count * 16), 1e30F);
        k.linear4(panel.data(), q.view, rows.data(), count, out.data());
        for (int i = 0; i < count; ++i) {
          for (int r = 0; r < 16; ++r) {
            double expected = 0;
            double size = 0;
            for (int c = 0; c < columns; ++c) {
              const double term = double{weights[static_cast<std::size_t>(r * columns + c)]} *
                                  q.at(rows[static_cast<std::size_t>(i)], c);
              expected += term;
              size += std::abs(term);
            }
            ASSERT_NEAR(out[static_cast<std::size_t>(i * 16 + r)], expected, 2e-6 * size + 1e-6)
                << fmt::format("columns {} planes {} count {} row {}", columns, planes, count, r);
          }
        }
      }
    }
  }
}

TEST_P(Kernels, TwoPlanesAreHundredTimesFinerThanOne) {
  constexpr int columns = 2048;
  const RandomMatrix w(random, 16, columns, 4);
  std::vector<std::byte> panel(panel_bytes(columns, 4));
  pack_panel(w.matrix, 0, panel.data());
  const std::vector<float> x = normals(columns);
  const std::vector<float> exact = reference::linear(w.matrix, x);
  const auto error = [&](int planes) {
    const Quantised q(k, x, 1, columns, planes);
    std::vector<float> out(16);
    const std::int32_t row = 0;
    k.linear4(panel.data(), q.view, &row, 1, out.data());
    double difference = 0;
    double norm = 0;
    for (std::size_t r = 0; r < 16; ++r) {
      difference += std::pow(double{out[r]} - double{exact[r]}, 2);
      norm += std::pow(double{exact[r]}, 2);
    }
    return std::sqrt(difference / norm);
  };
  EXPECT_LT(error(1), 1.2e-2);
  EXPECT_LT(error(2), 1.2e-4);
}

TEST_P(Kernels, ProductsOfBytes) {
  for (const int columns : {64, 512, 2048}) {
    const RandomMatrix w(random, 16, columns, 8);
    std::vector<std::byte> panel(panel_bytes(columns, 8));
    pack_panel(w.matrix, 0, panel.data());
    for (const int count : {1, 2, 3, 4, 5, 9}) {
      const std::vector<float> x = normals(static_cast<std::size_t>(count * columns));
      std::vector<float> sums(x.size() / 64);
      k.group_sums(x.data(), count * columns, sums.data());
      std::vector<float> out(static_cast<std::size_t>(count * 16), 1e30F);
      k.linear8(panel.data(), columns, x.data(), sums.data(), count, out.data());
      const std::vector<float> expected = reference::linear(w.matrix, x);
      for (std::size_t i = 0; i < out.size(); ++i)
        ASSERT_NEAR(out[i], expected[i], 2e-4F * std::sqrt(static_cast<float>(columns)));
    }
  }
}

TEST_P(Kernels, RmsNorm) {
  for (const std::size_t n : {128U, 256U, 512U, 2048U}) {
    const std::vector<float> x = normals(n, 3);
    const std::vector<float> gain = normals(n);
    std::vector<float> y(n);
    k.rms_norm(x.data(), gain.data(), static_cast<int>(n), y.data());
    const std::vector<float> expected = reference::rms_norm(x, gain);
    for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], expected[i], 1e-5F);
  }
}

TEST_P(Kernels, SwigluAndItsTails) {
  std::vector<float> gate = normals(5 * 16, 4);
  const std::vector<float> up = normals(5 * 16);
  gate[0] = -200;  // exp overflows
  gate[1] = 200;
  std::vector<float> out(5 * 64, -1);
  k.swiglu(gate.data(), up.data(), 5, out.data());
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t r = 0; r < 16; ++r) {
      const double g = gate[i * 16 + r];
      EXPECT_NEAR(out[i * 64 + r], g / (1 + std::exp(-g)) * up[i * 16 + r], 2e-6 * (1 + std::abs(g)));
    }
    EXPECT_EQ(out[i * 64 + 16], -1) << "16 of 64 columns are written";
  }
}

TEST_P(Kernels, ScatterAddWithAndWithoutShares) {
  const std::vector<float> tile = normals(3 * 16);
  const std::vector<std::int32_t> rows{4, 0, 2};
  const std::vector<float> shares{0.5F, 2, -1};
  const std::vector<float> before = normals(5 * 48);
  for (const float* share : {shares.data(), static_cast<const float*>(nullptr)}) {
    std::vector<float> y = before;
    k.scatter_add(tile.data(), rows.data(), share, 3, y.data() + 16, 48);
    std::vector<float> expected = before;
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t r = 0; r < 16; ++r)
        expected[static_cast<std::size_t>(rows[i]) * 48 + 16 + r] +=
            (share != nullptr ? shares[i] : 1) * tile[i * 16 + r];
    }
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 1e-6);
  }
}

TEST_P(Kernels, TheConvolutionRemembersThreeInputs) {
  constexpr std::size_t channels = 32;
  constexpr std::size_t stride = 40;
  const std::vector<float> taps = normals(4 * channels);
  const std::vector<float> input = normals(11 * stride);
  const std::vector<float> first_window = normals(3 * channels);
  std::vector<float> timeline = first_window;  // [3 + 11][channels]
  for (std::size_t t = 0; t < 11; ++t)
    timeline.insert(timeline.end(), input.begin() + static_cast<std::ptrdiff_t>(t * stride),
                    input.begin() + static_cast<std::ptrdiff_t>(t * stride + channels));
  std::vector<float> x = input;
  std::vector<float> window = first_window;
  // In pieces, as chunks of a prompt and single tokens come.
  int done = 0;
  for (const int piece : {1, 2, 7, 1}) {
    k.convolve(x.data() + done * static_cast<int>(stride), stride, piece, channels, taps.data(), channels,
               window.data(), channels);
    done += piece;
  }
  for (std::size_t t = 0; t < 11; ++t) {
    for (std::size_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (std::size_t tap = 0; tap < 4; ++tap)
        sum += double{taps[tap * channels + c]} * double{timeline[(t + tap) * channels + c]};
      EXPECT_NEAR(x[t * stride + c], sum / (1 + std::exp(-sum)), 1e-5);
    }
    EXPECT_EQ(x[t * stride + channels], input[t * stride + channels]) << "beyond the channels";
  }
  for (std::size_t i = 0; i < window.size(); ++i) EXPECT_EQ(window[i], timeline[11 * channels + i]);
}

TEST_P(Kernels, TheDeltaRule) {
  constexpr std::size_t dim = 128;
  constexpr std::size_t tokens = 7;
  constexpr std::size_t stride = 3 * dim + 8;
  std::vector<float> x = normals(tokens * stride);
  for (std::size_t t = 0; t < tokens; ++t) {
    k.l2_normalise(x.data() + t * stride, 1.0F / std::sqrt(128.0F));
    k.l2_normalise(x.data() + t * stride + dim, 1);
    double square = 0;
    for (std::size_t i = 0; i < dim; ++i) square += std::pow(double{x[t * stride + dim + i]}, 2);
    EXPECT_NEAR(square, 1, 1e-5);
  }
  const std::vector<float> decay{0.9F, 1e-3F, 0.99F, 1, 0, 0.5F, 0.95F};
  const std::vector<float> beta{0.5F, 1, 0.1F, 0.9F, 0.7F, 0, 0.3F};
  const std::vector<float> start = normals(dim * dim);

  std::vector<double> state(start.begin(), start.end());
  std::vector<double> expected;
  for (std::size_t t = 0; t < tokens; ++t) {
    const float* q = x.data() + t * stride;
    const float* key = q + dim;
    const float* v = key + dim;
    std::vector<double> held(dim, 0.0);
    std::vector<double> out(dim, 0.0);
    for (double& s : state) s *= decay[t];
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j) held[j] += state[i * dim + j] * key[i];
    }
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j) {
        state[i * dim + j] += double{key[i]} * (v[j] - held[j]) * beta[t];
        out[j] += state[i * dim + j] * q[i];
      }
    }
    expected.insert(expected.end(), out.begin(), out.end());
  }

  // All at once, in pieces of odd length, and with the outputs in the place of v.
  for (const std::vector<int>& pieces : {std::vector<int>{7}, {1, 2, 3, 1}, {1, 1, 1, 1, 1, 1, 1}}) {
    std::vector<float> rows = x;
    std::vector<float> s(start.size());
    const auto packed = [](std::size_t i) {  // blocks of 32 columns
      return i % dim / 32 * dim * 32 + i / dim * 32 + i % 32;
    };
    for (std::size_t i = 0; i < s.size(); ++i) s[packed(i)] = start[i];
    std::size_t done = 0;
    for (const int piece : pieces) {
      float* q = rows.data() + done * stride;
      k.delta_scan(s.data(), q, q + dim, q + 2 * dim, stride, decay.data() + done, beta.data() + done, piece,
                   q + 2 * dim, stride);
      done += static_cast<std::size_t>(piece);
    }
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t j = 0; j < dim; ++j)
        ASSERT_NEAR(rows[t * stride + 2 * dim + j], expected[t * dim + j], 2e-5) << t;
    }
    for (std::size_t i = 0; i < s.size(); ++i) ASSERT_NEAR(s[packed(i)], state[i], 2e-5);
  }
}

TEST_P(Kernels, TheGatedNorm) {
  const std::vector<float> x = normals(128, 2);
  const std::vector<float> gain = normals(128);
  const std::vector<float> z = normals(128, 3);
  std::vector<float> out(128);
  k.gated_norm(x.data(), gain.data(), z.data(), out.data());
  const std::vector<float> normed = reference::rms_norm(x, gain);
  for (std::size_t i = 0; i < 128; ++i) EXPECT_NEAR(out[i], normed[i] * reference::silu(z[i]), 2e-5);
}

TEST_P(Kernels, RopeTurnsPairsOfTheFirstSixtyFour) {
  const std::vector<float> before = normals(256);
  std::vector<float> turn(64);
  for (std::size_t j = 0; j < 32; ++j) {
    turn[j] = std::cos(0.1F * static_cast<float>(j));
    turn[32 + j] = std::sin(0.1F * static_cast<float>(j));
  }
  std::vector<float> head = before;
  k.rotate(head.data(), turn.data());
  for (std::size_t j = 0; j < 32; ++j) {
    EXPECT_NEAR(head[j], before[j] * turn[j] - before[32 + j] * turn[32 + j], 1e-6);
    EXPECT_NEAR(head[32 + j], before[32 + j] * turn[j] + before[j] * turn[32 + j], 1e-6);
  }
  for (std::size_t d = 64; d < 256; ++d) EXPECT_EQ(head[d], before[d]);
}

float rounded(float value) {
  // To bfloat16, nearest.
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7fffU + (bits >> 16U & 1U)) & 0xffff0000U);
}

TEST_P(Kernels, AttentionOverBlocksIsSoftmaxOverAllPositions) {
  constexpr int positions = 700;  // two blocks, the second in part
  const std::vector<float> keys = normals(std::size_t{positions} * 256, 0.3F);
  const std::vector<float> values = normals(std::size_t{positions} * 256);
  KvCache cache(2);
  cache.reserve(0, positions);
  for (int p = 0; p < positions; ++p)
    cache.store(p, 1, std::span(keys).subspan(static_cast<std::size_t>(p) * 256, 256),
                std::span(values).subspan(static_cast<std::size_t>(p) * 256, 256));

  for (const int rows : {1, 3, 8, 11}) {
    const std::vector<float> q = normals(static_cast<std::size_t>(rows * 256));
    std::vector<std::int32_t> limits;
    for (int i = 0; i < rows; ++i) limits.push_back(positions - i * 60);  // each row sees less; 1 at the end
    limits.back() = rows > 1 ? 1 : positions;
    std::vector<float> peak(static_cast<std::size_t>(rows), -1e30F);
    std::vector<float> sum(static_cast<std::size_t>(rows));
    std::vector<float> out(static_cast<std::size_t>(rows * 256));
    std::vector<std::int32_t> rest = limits;
    k.attend(q.data(), rows, cache.keys(0, 1), cache.values(0, 1), 512, rest.data(),
             {peak.data(), sum.data(), out.data()});
    for (std::int32_t& limit : rest) limit -= 512;
    k.attend(q.data(), rows, cache.keys(1, 1), cache.values(1, 1), 192, rest.data(),
             {peak.data(), sum.data(), out.data()});

    for (int i = 0; i < rows; ++i) {
      const auto row = static_cast<std::size_t>(i);
      std::vector<double> scores;
      for (std::size_t p = 0; p < static_cast<std::size_t>(limits[row]); ++p) {
        double score = 0;
        for (std::size_t d = 0; d < 256; ++d)
          score += double{q[row * 256 + d]} * double{rounded(keys[p * 256 + d])};
        scores.push_back(score);
      }
      const double top = *std::max_element(scores.begin(), scores.end());
      std::vector<double> expected(256, 0.0);
      double total = 0;
      for (std::size_t p = 0; p < scores.size(); ++p) {
        const double weight = std::exp(scores[p] - top);
        total += weight;
        for (std::size_t d = 0; d < 256; ++d) expected[d] += weight * double{rounded(values[p * 256 + d])};
      }
      const std::vector<float> gate = normals(256);
      std::vector<float> gated(256);
      k.gate_output({peak.data() + row, sum.data() + row, out.data() + row * 256}, gate.data(), gated.data());
      for (std::size_t d = 0; d < 256; ++d)
        ASSERT_NEAR(gated[d], expected[d] / total / (1 + std::exp(-double{gate[d]})), 2e-5)
            << fmt::format("rows {} row {}", rows, i);
    }
  }
}

TEST_P(Kernels, PartsOfAttentionMerge) {
  KvCache cache(1);
  cache.reserve(0, 96);
  const std::vector<float> keys = normals(96 * 256);
  for (int p = 0; p < 96; ++p) {
    const auto key = std::span(keys).subspan(static_cast<std::size_t>(p) * 256, 256);
    cache.store(p, 0, key, key);
  }
  const std::vector<float> q = normals(256);
  const auto attend = [&](int first, int count) {
    std::vector<float> state(258);
    state[256] = -1e30F;
    const std::int32_t limit = count;
    k.attend(q.data(), 1, cache.keys(0, 0) + first * 256, cache.values(0, 0) + first * 256, count, &limit,
             {&state[256], &state[257], state.data()});
    return state;
  };
  const std::vector<float> whole = attend(0, 96);
  std::vector<float> first = attend(0, 32);
  std::vector<float> second = attend(32, 64);
  k.merge({&first[256], &first[257], first.data()}, {&second[256], &second[257], second.data()});
  for (std::size_t d = 0; d < 256; ++d) EXPECT_NEAR(first[d] / first[257], whole[d] / whole[257], 1e-5);
}

// The integers of a product are exact and the float sums have one order, so levels with a fused multiply-add
// agree bit for bit: an answer does not depend on which of them the machine has.
TEST(KernelLevels, WideInstructionsGiveTheSameBits) {
  const KernelTable* narrow = kernels(Level::avx2);
  const KernelTable* wide = kernels(Level::avx512);
  if (narrow == nullptr || wide == nullptr) GTEST_SKIP() << "this machine has not both AVX2 and AVX-512";
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  constexpr int columns = 2048;
  constexpr int count = 11;
  std::vector<float> x(static_cast<std::size_t>(count * columns));
  for (float& value : x) value = normal(random);
  const RandomMatrix w(random, 16, columns, 4);
  const RandomMatrix w8(random, 16, columns, 8);
  std::vector<std::byte> panel(panel_bytes(columns, 4));
  pack_panel(w.matrix, 0, panel.data());
  std::vector<std::byte> panel8(panel_bytes(columns, 8));
  pack_panel(w8.matrix, 0, panel8.data());
  std::vector<std::int32_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  const auto run = [&](const KernelTable& k) {
    std::vector<float> result;
    const auto keep = [&](const std::vector<float>& values) {
      result.insert(result.end(), values.begin(), values.end());
    };
    for (const int planes : {1, 2}) {
      const Quantised q(k, x, count, columns, planes);
      std::vector<float> out(count * 16);
      k.linear4(panel.data(), q.view, rows.data(), count, out.data());
      keep(out);
      keep(q.factors);
    }
    std::vector<float> sums(x.size() / 64);
    k.group_sums(x.data(), count * columns, sums.data());
    std::vector<float> out(count * 16);
    k.linear8(panel8.data(), columns, x.data(), sums.data(), count, out.data());
    keep(out);
    std::vector<float> y(columns);
    k.rms_norm(x.data(), x.data() + columns, columns, y.data());
    keep(y);
    std::vector<float> state(x.begin(), x.begin() + 128 * 128);
    const std::vector<float> decay{0.9F, 0.8F, 0.7F};
    k.delta_scan(state.data(), x.data(), x.data() + 128, x.data() + 256, 384, decay.data(), decay.data(), 3,
                 y.data(), 128);
    keep(state);
    keep(y);
    return result;
  };
  const std::vector<float> first = run(*narrow);
  const std::vector<float> second = run(*wide);
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace calla::cpu
