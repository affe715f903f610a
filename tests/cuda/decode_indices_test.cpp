// Where things lie and who has them in the kernels of decode: plain functions, tested without a GPU.
#include <array>
#include <set>

#include <gtest/gtest.h>

#include "cuda/decode_groups.h"
#include "cuda/digits.h"

namespace calla::cuda {
namespace {

constexpr int banks = 32;

TEST(DecodeIndices, DigitsHaveAPlaceEach) {
  std::set<int> places;
  for (int group = 0; group < 4; ++group) {
    for (int plane = 0; plane < digit_planes; ++plane) {
      for (int t = 0; t < 4; ++t) {
        for (int h = 0; h < 4; ++h) {
          const int place = digit_word(group, plane, t, h);
          EXPECT_GE(place, 0);
          EXPECT_LT(place, digit_words(group + 1));
          EXPECT_TRUE(places.insert(place).second) << group << plane << t << h;
          // What a thread loads at once is one behind the other, and aligned.
          EXPECT_EQ(place, digit_word(group, plane, t, 0) + h);
          EXPECT_EQ((place - h) % 4, 0);
        }
      }
    }
  }
}

TEST(DecodeIndices, DigitsMeetInNoBank) {
  // A word is stored by all lanes at a time: two of four for each of four groups.
  for (int plane = 0; plane < digit_planes; ++plane) {
    for (int j = 0; j < 2; ++j) {
      std::set<int> hit;
      for (int lane = 0; lane < 32; ++lane)
        hit.insert(digit_word(lane / 8, plane, lane % 2 * 2 + j, lane / 2 % 4) % banks);
      EXPECT_EQ(hit.size(), 32U);
    }
  }
}

TEST(DecodeIndices, BlocksShareEvenly) {
  for (const int sharers : {1, 7, 132, 264}) {
    for (const int total : {0, 1, 131, 132, 133, 772, 15520, most_groups * 64}) {
      const int fewest = total / sharers;
      EXPECT_EQ(first_of_share(total, sharers, 0), 0);
      EXPECT_EQ(first_of_share(total, sharers, sharers), total);
      for (int block = 0; block < sharers; ++block) {
        const int share = first_of_share(total, sharers, block + 1) - first_of_share(total, sharers, block);
        EXPECT_GE(share, fewest);
        EXPECT_LE(share, fewest + 1);
      }
    }
  }
}

TEST(DecodeIndices, PartsOfADownProjectionAreAllOfIt) {
  const auto columns = [](auto parts) {
    using P = decltype(parts);
    return P::warps * P::groups_of_part * tile_columns;
  };
  EXPECT_EQ(columns(DownParts<64>()), 64);
  EXPECT_EQ(columns(DownParts<128>()), 128);
  EXPECT_EQ(columns(DownParts<512>()), 512);
}

}  // namespace
}  // namespace calla::cuda
