// The router's logits against double sums, and the order of routes against a plain sort.
#include "cuda/routing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "cuda/arrays.h"

namespace calla::cuda {
namespace {

constexpr int top = Shape::experts_per_token;

float from_bf16(std::uint32_t bits) {
  bits <<= 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Random normed rows through rms_norm_split, so that the router sees what it will.
void test_router(int rows, int columns, int tokens) {
  SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", " << tokens << " tokens");
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows) * columns);
  for (auto& code : codes) code = static_cast<std::uint8_t>(random());
  std::vector<std::uint32_t> scales(static_cast<std::size_t>(rows) * (columns / 64));
  for (auto& pair : scales) {
    const std::uint32_t scale = 0x3900U + random() % 0x80U;  // 1.2e-4 .. 2.4e-4
    const std::uint32_t bias = 0xBC40U + random() % 0x80U;   // -1.2e-2 .. -3.1e-2
    pair = bias << 16 | scale;
  }
  std::vector<float> x(static_cast<std::size_t>(tokens) * columns);
  for (float& value : x) value = normal(random) + 0.3F;
  std::vector<float> gain(static_cast<std::size_t>(columns));
  for (float& value : gain) value = 1 + 0.2F * normal(random);

  const auto codes_device = on_device(codes);
  const auto scales_device = on_device(scales);
  const auto x_device = on_device(x);
  const auto gain_device = on_device(gain);
  const ByteRows w{
      .codes = codes_device.data(), .scales = scales_device.data(), .rows = rows, .columns = columns};
  const auto run = [&](int count) {
    const auto high = poisoned<__half>(static_cast<std::size_t>(count) * columns);
    const auto low = poisoned<__half>(static_cast<std::size_t>(count) * columns);
    const auto sums = poisoned<float>(static_cast<std::size_t>(count) * (columns / 64));
    const auto logits = poisoned<float>(static_cast<std::size_t>(count + 1) * rows);
    const SplitRows split{.high = high.data(), .low = low.data(), .sums = sums.data()};
    rms_norm_split(x_device.data(), gain_device.data(), columns, count, split, nullptr);
    router_logits(w, split, count, logits.data(), nullptr);
    return on_host(logits.data(), logits.size());
  };
  const std::vector<float> logits = run(tokens);

  double wrong = 0;
  double norm = 0;
  double largest = 0;
  std::vector<double> normed(static_cast<std::size_t>(columns));
  for (const int t : {0, 1, 7, 8, 63, 64, 65, tokens / 2, tokens - 1}) {
    if (t >= tokens) continue;
    const float* row = &x[static_cast<std::size_t>(t) * columns];
    double squares = 0;
    for (int c = 0; c < columns; ++c) squares += static_cast<double>(row[c]) * row[c];
    const double factor = 1 / std::sqrt(squares / columns + rms_norm_epsilon);
    for (int c = 0; c < columns; ++c)
      normed[static_cast<std::size_t>(c)] = row[c] * factor * gain[static_cast<std::size_t>(c)];
    for (int r = 0; r < rows; ++r) {
      double expected = 0;
      for (int c = 0; c < columns; ++c) {
        const std::uint32_t pair =
            scales[static_cast<std::size_t>(r) * (columns / 64) + static_cast<std::size_t>(c / 64)];
        expected += (static_cast<double>(from_bf16(pair & 0xFFFFU)) *
                         codes[static_cast<std::size_t>(r) * columns + c] +
                     from_bf16(pair >> 16)) *
                    normed[static_cast<std::size_t>(c)];
      }
      const double got = logits[static_cast<std::size_t>(t) * rows + static_cast<std::size_t>(r)];
      wrong += (got - expected) * (got - expected);
      norm += expected * expected;
      largest = std::max(largest, std::abs(got - expected));
      if (!(std::abs(got - expected) < 1e-3) && largest >= 1e-3) {
        FAIL() << "token " << t << " row " << r << ": " << got << " expected " << expected;
      }
    }
  }
  const double error = std::sqrt(wrong / norm);
  std::printf("  router error %.2e (largest %.1e)\n", error, largest);
  EXPECT_LT(error, 1e-5);  // float's rounding, sums of 2048
  for (int r = 0; r < rows; ++r)
    EXPECT_TRUE(std::isnan(logits[static_cast<std::size_t>(tokens) * rows + static_cast<std::size_t>(r)]));

  for (const int fewer : {1, 65}) {
    if (fewer >= tokens) continue;
    const std::vector<float> again = run(fewer);
    EXPECT_EQ(
        0, std::memcmp(again.data(), logits.data(), static_cast<std::size_t>(fewer) * rows * sizeof(float)));
  }
}

TEST(Router, Logits) {
  test_router(257, 2048, 200);
  test_router(257, 2048, 6400);  // all rows in one block
  test_router(257, 2048, 1);
  test_router(33, 512, 100);
}

void test_routes(const std::vector<float>& logits, int tokens, int experts) {
  SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts");
  const auto logits_device = on_device(logits);
  const auto memory = poisoned<std::byte>(routes_bytes(tokens, experts));
  const Routes routes = carve_routes(memory.data(), tokens, experts);
  route(logits_device.data(), tokens, experts, routes, nullptr);

  const auto count = static_cast<std::size_t>(tokens) * top;
  const std::vector<int> chosen = on_host(routes.experts, count);
  const std::vector<float> shares = on_host(routes.shares, count);
  const std::vector<int> positions = on_host(routes.positions, count);
  const std::vector<int> token_of = on_host(routes.tokens, count);
  const int tile_count = on_host(routes.tile_count, 1)[0];
  ASSERT_GE(tile_count, 0);
  ASSERT_LE(tile_count, max_route_tiles(tokens * top, experts));
  const std::vector<TokenTile> tiles = on_host(routes.tiles, static_cast<std::size_t>(tile_count));

  std::vector<std::vector<int>> visitors(static_cast<std::size_t>(experts));
  for (int t = 0; t < tokens; ++t) {
    const float* row = &logits[static_cast<std::size_t>(t) * (experts + 1)];
    std::vector<int> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    double total = 0;
    for (int i = 0; i < top; ++i)
      total += std::exp(static_cast<double>(row[order[static_cast<std::size_t>(i)]]) - row[order[0]]);
    std::vector<int> ascending(order.begin(), order.begin() + top);
    std::sort(ascending.begin(), ascending.end());
    for (int i = 0; i < top; ++i) {
      const std::size_t at = static_cast<std::size_t>(t) * top + static_cast<std::size_t>(i);
      const int expert = ascending[static_cast<std::size_t>(i)];
      ASSERT_EQ(chosen[at], expert) << "token " << t << " choice " << i;
      ASSERT_NEAR(shares[at], std::exp(static_cast<double>(row[expert]) - row[order[0]]) / total, 1e-6) << t;
      visitors[static_cast<std::size_t>(expert)].push_back(t * top + i);
    }
  }
  std::size_t place = 0;
  std::size_t tile = 0;
  for (int e = 0; e < experts; ++e) {
    const std::vector<int>& here = visitors[static_cast<std::size_t>(e)];
    // As few tiles as possible, of equal size but for the last.
    const std::size_t expert_tiles = (here.size() + token_tile - 1) / token_tile;
    const std::size_t share = expert_tiles == 0 ? 1 : (here.size() + expert_tiles - 1) / expert_tiles;
    for (std::size_t i = 0; i < here.size(); ++i) {
      if (i % share == 0) {
        ASSERT_LT(tile, tiles.size());
        EXPECT_EQ(tiles[tile].expert, e);
        EXPECT_EQ(tiles[tile].first, static_cast<int>(place));
        EXPECT_EQ(tiles[tile].count, static_cast<int>(std::min(share, here.size() - i)));
        ++tile;
      }
      ASSERT_EQ(positions[static_cast<std::size_t>(here[i])], static_cast<int>(place));
      ASSERT_EQ(token_of[place], here[i] / top);
      ++place;
    }
  }
  EXPECT_EQ(tile, tiles.size());
}

std::vector<float> random_logits(int tokens, int experts, float step) {
  std::mt19937 random(99);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(static_cast<std::size_t>(tokens) * (experts + 1));
  // Multiples of a step: with a large one many are equal.
  for (float& value : logits) value = step * std::round(normal(random) / step);
  return logits;
}

TEST(Routing, ManyTokens) {
  for (const int tokens : {1, 63, 64, 65, 1000, 8192})
    test_routes(random_logits(tokens, 256, 1e-6F), tokens, 256);
  for (const int tokens : {1, 64, 777}) test_routes(random_logits(tokens, 32, 1e-6F), tokens, 32);
}
TEST(Routing, LowerIdFirstAmongEquals) {
  test_routes(random_logits(200, 256, 1.0F), 200, 256);
  test_routes(std::vector<float>(100 * 257, 0.0F), 100, 256);
  std::vector<float> zeros(33, 0.0F);
  for (std::size_t i = 0; i < zeros.size(); i += 2) zeros[i] = -0.0F;  // equal to 0
  test_routes(zeros, 1, 32);
}
TEST(Routing, InfinitiesAreLogits) {
  std::vector<float> logits = random_logits(10, 32, 1e-6F);
  for (int i = 0; i < 28; ++i) logits[static_cast<std::size_t>(i)] = -std::numeric_limits<float>::infinity();
  test_routes(logits, 10, 32);
}

}  // namespace
}  // namespace calla::cuda
