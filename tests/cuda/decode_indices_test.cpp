// Where things lie and who has them in the kernels of decode: plain functions, tested without a GPU.
#include <array>
#include <set>

#include <gtest/gtest.h>

#include "cuda/decode_groups.h"
#include "cuda/fragments.h"

namespace calla::cuda {
namespace {

constexpr int banks = 32;

TEST(DecodeIndices, FragmentsHaveAPlaceEach) {
  std::set<int> places;
  for (int half = 0; half < 2; ++half) {
    for (int t = 0; t < 4; ++t) {
      for (int word = 0; word < 8; ++word) {
        const int place = fragment_word(half, t, word);
        EXPECT_GE(place, 0);
        EXPECT_LT(place, fragment_words);
        EXPECT_TRUE(places.insert(place).second) << half << t << word;
        // What a thread loads at once is one behind the other, and aligned.
        EXPECT_EQ(place, fragment_word(half, t, word / 4 * 4) + word % 4);
        EXPECT_EQ((place - word % 4) % 4, 0);
      }
    }
  }
}

TEST(DecodeIndices, FragmentsMeetInNoBank) {
  // Sixteen bytes are loaded for eight lanes at a time: those of one row.
  for (const int word : {0, 4}) {
    std::set<int> hit;
    for (int lane = 0; lane < 8; ++lane) {
      for (int i = 0; i < 4; ++i) hit.insert((fragment_word(lane / 4, lane % 4, word) + i) % banks);
    }
    EXPECT_EQ(hit.size(), 32U);
  }
  // A word is stored by all lanes at a time: eight for each of four groups.
  for (int half = 0; half < 2; ++half) {
    for (int t = 0; t < 4; ++t) {
      std::set<int> hit;
      for (int lane = 0; lane < 32; ++lane)
        hit.insert((lane / 8 * fragment_words + fragment_word(half, t, lane % 8)) % banks);
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
