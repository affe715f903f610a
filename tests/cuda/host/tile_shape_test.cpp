#include "cuda/host/tile_shape.h"

#include <gtest/gtest.h>

namespace calla::cuda {
namespace {

constexpr int processors = 132;

bool operator==(const TileShape& a, const TileShape& b) { return a.rows == b.rows && a.tokens == b.tokens; }

TEST(TileShape, ManyTokensAreCutIntoTheLargestTiles) {
  for (const int rows : {2048, 9216, 12352})
    EXPECT_TRUE(tile_shape(rows, 8192, processors) == largest_tile) << rows;
}

TEST(TileShape, FewTilesAreCutSmallerUntilEveryProcessorHasOne) {
  for (const int rows : {1024, 2048}) {
    for (const int tokens : {17, 64, 128, 512}) {
      const TileShape shape = tile_shape(rows, tokens, processors);
      const auto pieces = [](int whole, int piece) { return (whole + piece - 1) / piece; };
      const int tiles = pieces(rows, shape.rows) * pieces(tokens, shape.tokens);
      EXPECT_LE(tiles, processors) << rows << " x " << tokens;
      EXPECT_LT(shape.rows, largest_tile.rows) << rows << " x " << tokens;
    }
  }
}

TEST(TileShape, TokensAreSharedEvenly) {
  EXPECT_EQ(tokens_of_tile(0, 128), 0);
  EXPECT_EQ(tokens_of_tile(1, 128), 1);
  EXPECT_EQ(tokens_of_tile(128, 128), 128);
  EXPECT_EQ(tokens_of_tile(129, 128), 65);
  EXPECT_EQ(tokens_of_tile(257, 128), 86);
  EXPECT_EQ(tokens_of_tile(65, 32), 22);
}

}  // namespace
}  // namespace calla::cuda
