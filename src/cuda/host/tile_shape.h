// How the products of a prompt are cut into tiles.
#pragma once

namespace calla::cuda {

/// Up to this many tokens are multiplied together.
inline constexpr int token_tile = 128;

/// The tokens of each tile but the last when `count` of them are shared out, at most `most` for one: as few
/// tiles as possible, of about equal size, as a small tile costs more than its share.
constexpr int tokens_of_tile(int count, int most) {
  const int tiles = (count + most - 1) / most;
  return tiles == 0 ? 0 : (count + tiles - 1) / tiles;
}

/// Rows of weights and tokens of a tile of Hopper's kernel.
struct TileShape {
  int rows;
  int tokens;
};
inline constexpr TileShape largest_tile{256, token_tile};

/// The shape with which `processors` blocks, each with one tile at a time, are soonest done with a matrix of
/// so many rows.
TileShape tile_shape(int rows, int tokens, int processors);

}  // namespace calla::cuda
