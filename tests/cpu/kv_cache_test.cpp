#include "cpu/kv_cache.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace calla::cpu {
namespace {

std::array<float, 256> filled(float value) {
  std::array<float, 256> row{};
  row.fill(value);
  return row;
}

/// The first dim of a position's key.
std::uint16_t key(const KvCache& cache, int position, int head) {
  const int within = position % kv_block_positions;
  return cache.keys(position / kv_block_positions, head)[within / 16 * 16 * 256 + within % 16 * 2];
}

TEST(KvCache, TakesABlockAtATime) {
  KvCache cache(20);  // the 35B's ten layers of two heads
  EXPECT_EQ(cache.bytes(), 0U);
  cache.reserve(0, 1);
  EXPECT_EQ(cache.bytes(), 512U * 20480);  // 20,480 bytes a position
  cache.reserve(1, 512);
  EXPECT_EQ(cache.bytes(), 512U * 20480);
  cache.reserve(512, 513);
  EXPECT_EQ(cache.bytes(), 1024U * 20480);
  cache.truncate(512);
  EXPECT_EQ(cache.bytes(), 512U * 20480);
  cache.truncate(0);
  EXPECT_EQ(cache.bytes(), 0U);
}

TEST(KvCache, RoundsToNearestEven) {
  KvCache cache(1);
  cache.reserve(0, 1);
  const auto stored = [&](float value) {
    cache.store(0, 0, filled(value), filled(value));
    EXPECT_EQ(cache.keys(0, 0)[0], cache.values(0, 0)[0]);
    return cache.keys(0, 0)[0];
  };
  EXPECT_EQ(stored(1.0F), 0x3f80);
  EXPECT_EQ(stored(1.0F + 0x1p-8F), 0x3f80) << "half way, to even";
  EXPECT_EQ(stored(1.0F + 0x3p-8F), 0x3f82) << "half way, to even";
  EXPECT_EQ(stored(1.0F + 0x1.1p-8F), 0x3f81);
  EXPECT_EQ(stored(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_TRUE(std::isnan(std::bit_cast<float>(std::uint32_t{stored(std::nanf(""))} << 16U)));
}

TEST(KvCache, SharedBlocksStayAsTheyAre) {
  KvCache cache(1);
  cache.reserve(0, 520);
  for (int p = 0; p < 520; ++p) cache.store(p, 0, filled(1), filled(1));
  const KvCache shared = cache.share(515);
  EXPECT_EQ(shared.keys(0, 0), cache.keys(0, 0)) << "the same memory";

  // The cache goes on in its second block, which is its own from then on.
  cache.reserve(520, 521);
  EXPECT_EQ(shared.keys(0, 0), cache.keys(0, 0)) << "a full block is shared for good";
  EXPECT_NE(shared.keys(1, 0), cache.keys(1, 0));
  cache.store(520, 0, filled(2), filled(2));
  EXPECT_EQ(key(cache, 514, 0), 0x3f80) << "with what it held";

  // And two sequences that go on from the snapshot do not see each other.
  KvCache first = shared.share(515);
  KvCache second = shared.share(515);
  first.reserve(515, 516);
  second.reserve(515, 516);
  first.store(515, 0, filled(3), filled(3));
  second.store(515, 0, filled(4), filled(4));
  EXPECT_EQ(key(first, 515, 0), 0x4040);
  EXPECT_EQ(key(second, 515, 0), 0x4080);
  EXPECT_EQ(key(cache, 515, 0), 0x3f80);
}

}  // namespace
}  // namespace calla::cpu
