// The router, and the order in which tokens meet their experts. All on the device: the host never knows where
// a token goes.
#pragma once
#include <cstddef>

#include <cuda_runtime_api.h>

#include "cuda/gemm.h"
#include "cuda/norm.h"
#include "cuda/tiles.h"
#include "model/shape.h"

namespace calla::cuda {

/// logits [tokens][experts + 1] = X W^T to float's accuracy; the last row of w is the shared expert's gate.
void router_logits(const ByteRows& w, const SplitRows& x, int tokens, float* logits, cudaStream_t stream);

/// The routes of a chunk of tokens, in device memory. Routes are ordered by expert, then by token.
struct Routes {
  int* experts = nullptr;    // [tokens][8], ascending
  float* shares = nullptr;   // [tokens][8], of those experts
  int* positions = nullptr;  // [tokens][8], their routes
  int* tokens = nullptr;     // [routes], whose route it is
  TokenTile* tiles = nullptr;
  int* tile_count = nullptr;
  int* queue = nullptr;
  int* counts = nullptr;  // [tokens / 64, rounded up][experts], tokens of the 64 that go to the expert

  RouteTiles as_tiles() const {
    return {.tokens = tokens, .tiles = tiles, .count = tile_count, .queue = queue};
  }
};

/// The memory that routes of up to `tokens` tokens take, and routes laid out in it.
std::size_t routes_bytes(int tokens, int experts);
Routes carve_routes(std::byte* memory, int tokens, int experts);

/// Routes each token to the experts with the eight largest of its logits [tokens][experts + 1], the lower id
/// first among equals; shares are the softmax over the eight. `experts` is 32 or 256.
void route(const float* logits, int tokens, int experts, const Routes& routes, cudaStream_t stream);

}  // namespace calla::cuda
