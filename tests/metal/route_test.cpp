#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "metal/kernels/arguments.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/prefill_support.h"

namespace calla::metal {
namespace {

using namespace calla_kernels;

std::vector<Route> routes_of(Gpu& gpu, const Shape& shape, const std::vector<float>& logits) {
  const unsigned rows = static_cast<unsigned>(logits.size()) / static_cast<unsigned>(shape.experts + 1);
  const auto routes = gpu.room<Route>(rows);
  gpu.run("route", route_threads, {gpu.upload(logits), routes, constants(RowsArguments{rows})},
          Grid{tiles(rows, route_rows)});
  return values_of<Route>(routes);
}

TEST(Route, TakesTheEightLargestTiesToTheLowerId) {
  for (const Shape& shape : {demo, qwen36_35b}) {
    Gpu gpu(shape);
    const auto experts = static_cast<std::size_t>(shape.experts);
    constexpr std::size_t rows = 7;
    std::vector<float> logits = normal_values(rows * (experts + 1), 0, 3, 1);
    // Row 1: all equal; row 2: few values, so that ties are everywhere; row 3: far apart.
    for (std::size_t e = 0; e < experts; ++e) {
      logits[experts + 1 + e] = -2;
      logits[2 * (experts + 1) + e] = std::round(logits[2 * (experts + 1) + e]);
      logits[3 * (experts + 1) + e] *= 40;
    }
    const std::vector<Route> routes = routes_of(gpu, shape, logits);
    for (std::size_t t = 0; t < rows; ++t) {
      const std::span<const float> row = row_of(logits, t, experts + 1);
      std::vector<unsigned> order(experts);
      std::iota(order.begin(), order.end(), 0U);
      std::stable_sort(order.begin(), order.end(), [&](unsigned a, unsigned b) { return row[a] > row[b]; });
      double sum = 0;
      for (std::size_t i = 0; i < 8; ++i) sum += std::exp(double{row[order[i]]} - row[order[0]]);
      for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_EQ(routes[t].expert[i], order[i]) << t << ' ' << i;
        const double share = std::exp(double{row[order[i]]} - row[order[0]]) / sum;
        // The difference of logits rounds to 2^-24 of itself, which exp makes relative: up to 200 of them.
        EXPECT_NEAR(routes[t].share[i], share, 1e-5 * share + 1e-37) << t << ' ' << i;
      }
      EXPECT_NEAR(routes[t].shared, 1 / (1 + std::exp(-double{row[experts]})), 1e-6) << t;
    }
  }
}

TEST(Route, StaysWithinTheExpertsWhateverTheLogits) {
  Gpu gpu(demo);
  const auto experts = static_cast<std::size_t>(demo.experts);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> logits(3 * (experts + 1), nan);
  std::fill_n(logits.begin() + static_cast<std::ptrdiff_t>(experts + 1), experts + 1, -infinity);
  for (std::size_t e = 0; e < experts; ++e) logits[2 * (experts + 1) + e] = e % 2 == 0 ? nan : infinity;
  for (const Route& route : routes_of(gpu, demo, logits)) {
    const std::set<unsigned> distinct(std::begin(route.expert), std::end(route.expert));
    EXPECT_EQ(distinct.size(), 8U);
    EXPECT_LT(*distinct.rbegin(), experts);
  }
}

TEST(SortPairs, GroupsByExpertInTheOrderOfTokens) {
  for (const Shape& shape : {demo, qwen36_35b}) {
    Gpu gpu(shape);
    const auto experts = static_cast<unsigned>(shape.experts);
    for (const unsigned rows : {1U, 2U, 33U, 512U, 513U, 700U, 1024U}) {
      for (const unsigned tile : {16U, 32U}) {
        if (rows > 512 && tile == 16 && shape.experts > 32) continue;
        std::mt19937 random(rows);
        std::vector<Route> routes(rows);
        for (Route& route : routes) {
          // The first experts are popular; some get nothing.
          std::set<unsigned> chosen;
          while (chosen.size() < 8)
            chosen.insert(static_cast<unsigned>(random() % 3 == 0 ? random() % 9 : random() % (experts - 3)));
          std::copy(chosen.begin(), chosen.end(), route.expert);
          std::shuffle(std::begin(route.expert), std::end(route.expert), random);
        }
        const unsigned places = group_blocks(rows, tile, experts);
        const auto pairs = gpu.room<unsigned>(8 * index(rows));
        const auto blocks = gpu.room<Block>(places);
        gpu.run("sort_pairs", sort_threads,
                {gpu.upload(routes), pairs, blocks, constants(SortArguments{rows, tile, places})}, Grid{1});

        std::vector<unsigned> expected;
        std::vector<Block> expected_blocks;
        for (unsigned e = 0; e < experts; ++e) {
          const auto first = static_cast<unsigned>(expected.size());
          for (unsigned t = 0; t < rows; ++t)
            for (unsigned i = 0; i < 8; ++i)
              if (routes[t].expert[i] == e) expected.push_back(8 * t + i);
          const auto end = static_cast<unsigned>(expected.size());
          for (unsigned at = first; at < end; at += tile)
            expected_blocks.push_back({e, at, std::min(tile, end - at)});
        }
        EXPECT_EQ(values_of<unsigned>(pairs), expected) << rows;
        ASSERT_LE(expected_blocks.size(), places);
        expected_blocks.resize(places);
        const std::vector<Block> got = values_of<Block>(blocks);
        for (unsigned b = 0; b < places; ++b) {
          ASSERT_EQ(got[b].rows, expected_blocks[b].rows) << rows << ' ' << b;
          ASSERT_EQ(got[b].expert, expected_blocks[b].expert) << rows << ' ' << b;
          ASSERT_EQ(got[b].first, expected_blocks[b].first) << rows << ' ' << b;
        }
      }
    }
  }
}

}  // namespace
}  // namespace calla::metal
