// Products with 4-bit matrices for many tokens at a time, Y = X W^T: X [tokens][columns] half, row-major. The
// weights are exact in half but for rare roundings of 2^-12; products are summed in float, in ascending order
// of columns, 16 at a time, whatever the number of tokens: a token's results are the same to the bit whoever
// comes along.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "cuda/host/tile_shape.h"
#include "cuda/tiles.h"

namespace calla::cuda {

/// SwiGLU's outputs and the experts' are stored in half times these, and clamped, so that outliers of real
/// prompts stay in range. Powers of two: whoever reads them undoes it exactly.
inline constexpr float inner_scale = 1.0F / 64;
inline constexpr float answer_scale = 1.0F / 16;

/// Routes [first, first + count) of those that lead to an expert; count is 1 .. token_tile.
struct TokenTile {
  int expert;
  int first;
  int count;
};

/// All routes in tiles, in device memory. A route is a token's way through an expert; routes are ordered by
/// expert.
struct RouteTiles {
  const int* tokens = nullptr;  // of each route
  const TokenTile* tiles = nullptr;
  const int* count = nullptr;  // of tiles
  // Two counters that begin with, and after every product again are, zero: tiles are of unequal cost, and
  // blocks take the next one when they have done one.
  int* queue = nullptr;
};

constexpr int max_route_tiles(int routes, int experts) {
  return routes / token_tile + (routes < experts ? routes : experts);
}

/// y [tokens][stride] = X W^T. Rows from `split` (a multiple of 16) on go, as float, to tail [tokens][rows -
/// split] instead.
struct Projected {
  __half* y = nullptr;
  int stride = 0;
  float* tail = nullptr;
  int split = 0;
};
void project(const Tiles& w, const __half* x, int tokens, const Projected& to, cudaStream_t stream);

/// residual [tokens][rows] += X W^T.
void project_add(const Tiles& w, const __half* x, int tokens, float* residual, cudaStream_t stream);

/// inner [tokens][rows / 2] = inner_scale silu(gate) up, for a matrix of gate and up rows (tiles.h).
void project_swiglu(const Tiles& w, const __half* x, int tokens, __half* inner, cudaStream_t stream);

/// answers [tokens][rows] = answer_scale X W^T for X = inner / inner_scale.
void project_answers(const Tiles& w, const __half* inner, int tokens, __half* answers, cudaStream_t stream);

/// The same two for every route: inner [routes][rows / 2] from its token's row of x, answers [routes][rows].
void experts_swiglu(const TileStack& w, const __half* x, const RouteTiles& routes, __half* inner,
                    cudaStream_t stream);
void experts_answers(const TileStack& w, const __half* inner, const RouteTiles& routes, __half* answers,
                     cudaStream_t stream);

}  // namespace calla::cuda
