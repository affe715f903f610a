#include "cuda/host/tile_shape.h"

#include <array>
#include <limits>

namespace calla::cuda {
namespace {

/// A shape, and what a tile of it costs: microseconds for 2,048 columns on an H200.
struct Candidate {
  TileShape shape;
  double cost;
};
constexpr std::array<Candidate, 6> candidates{{{largest_tile, 24},
                                               {{256, 64}, 17},
                                               {{256, 32}, 13.5},
                                               {{128, 128}, 15.5},
                                               {{128, 64}, 12.5},
                                               {{128, 32}, 9}}};

constexpr int pieces(int whole, int piece) { return (whole + piece - 1) / piece; }

}  // namespace

TileShape tile_shape(int rows, int tokens, int processors) {
  TileShape best = largest_tile;
  double least = std::numeric_limits<double>::max();
  for (const auto& [shape, cost] : candidates) {
    const int tiles = pieces(rows, shape.rows) * pieces(tokens, shape.tokens);
    const double all = pieces(tiles, processors) * cost;
    if (all < least) {
      least = all;
      best = shape;
    }
  }
  return best;
}

}  // namespace calla::cuda
