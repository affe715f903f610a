#include "engine/prompt_cuts.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace calla {
namespace {

TEST(PromptCuts, TheLastCutLeavesAGrain) {
  EXPECT_EQ(last_cut(1, 16), 0);
  EXPECT_EQ(last_cut(31, 16), 0);
  EXPECT_EQ(last_cut(32, 16), 16);
  EXPECT_EQ(last_cut(47, 16), 16);
  EXPECT_EQ(last_cut(48, 16), 32);
}

/// Reads a prompt to its end and checks every piece.
void read(int length, const std::vector<int>& stops, int most, int grain) {
  SCOPED_TRACE(testing::Message() << length << " tokens in pieces of " << most);
  int done = 0;
  while (done < length) {
    const auto next = std::upper_bound(stops.begin(), stops.end(), done);
    const int stop = next == stops.end() ? length : *next;
    const int count = next_piece(done, length, stop, most, grain);
    ASSERT_GT(count, 0);
    ASSERT_LE(count, most);
    ASSERT_LE(done + count, stop) << "a position to keep was passed";
    done += count;
    if (done == length) {
      ASSERT_TRUE(count >= grain || length < grain) << "the last piece has " << count;
    } else {
      ASSERT_EQ(done % grain, 0);
    }
  }
}

TEST(PromptCuts, PiecesAreMultiplesOfTheGrainAndTheLastHasOne) {
  for (const int most : {32, 48, 64, 512}) {
    for (int length = 1; length < 700; ++length) {
      read(length, {}, most, 16);
      if (length >= 200) read(length, {16, 96, last_cut(length, 16)}, most, 16);
    }
  }
}

TEST(PromptCuts, KeepsTheEndAndWhereTheLastMessageBegins) {
  EXPECT_TRUE(kept_positions(20, std::vector{5}, 16).empty());
  EXPECT_EQ(kept_positions(100, {}, 16), std::vector{80});
  EXPECT_EQ(kept_positions(100, std::vector{40, 70, 96}, 16), (std::vector{64, 80}))
      << "messages that begin at 40 and 70, and the answer's header at 96";
  EXPECT_EQ(kept_positions(100, std::vector{-3, 0, 70, 100, 4000}, 16), (std::vector{64, 80}));
}

TEST(PromptCuts, KeepsEarlierMessagesAndStepsWithRoomBetween) {
  // The last message begins at 1,300.
  EXPECT_EQ(kept_positions(1500, std::vector{600, 700, 1200, 1250, 1300}, 16), (std::vector{688, 1296, 1472}))
      << "1,200 and 1,250 lie within 512 tokens before the last message; 600 lies before 700";
  // One long document: a step each 2,048 tokens.
  EXPECT_EQ(kept_positions(7000, std::vector{30}, 16), (std::vector{16, 2048, 4096, 6144, 6976}));
  for (const int position : kept_positions(50'000, std::vector{77, 5'000, 30'001}, 16)) {
    EXPECT_EQ(position % 16, 0);
    EXPECT_LE(position, last_cut(50'000, 16));
  }
}

}  // namespace
}  // namespace calla
