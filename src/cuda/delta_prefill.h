// The token mixer of a Gated DeltaNet layer for many tokens of one sequence: convolution, gates, delta rule
// in chunks of 64 tokens, gated norm.
#pragma once
#include <cstddef>

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "model/shape.h"

namespace calla::cuda {

/// One layer's call; all pointers into device memory.
struct DeltaPrefill {
  const __half* projected;   // [tokens][stride]: q | k | v | z
  int stride;                // a multiple of 8
  const float* gates;        // [tokens][2 value heads]: a | b
  const float* convolution;  // [channels][4], oldest tap first
  const float* a_log;        // [value heads]
  const float* dt_bias;      // [value heads]
  const float* norm;         // [128]
  float* state;              // [value heads][128 of v][128 of k], advanced by `tokens`
  float* window;             // [4][channels], likewise
  int tokens;
  int position;  // of the first of the tokens
  __half* y;     // [tokens][value heads * 128]
  std::byte* workspace;
};

inline constexpr int delta_chunk = 64;
constexpr int delta_chunks(int tokens) { return (tokens + delta_chunk - 1) / delta_chunk; }

/// The bytes of workspace that a call for so many tokens needs: 1.8 MB a chunk for the 35B.
template <Shape S>
constexpr std::size_t delta_prefill_workspace(int tokens) {
  constexpr std::size_t tile = sizeof(__half) * delta_chunk * Shape::delta_head_dim;
  constexpr std::size_t per_key_head = 2 * tile;  // q, k
  constexpr std::size_t per_value_head =
      2 * tile + tile / 2 + 2 * sizeof(float) * delta_chunk;  // w, u, p, decays
  return static_cast<std::size_t>(delta_chunks(tokens)) *
         (S.delta_key_heads * per_key_head + S.delta_value_heads * per_value_head);
}

/// The ways to take the state through the chunks: Hopper's warpgroups and clusters, or a warp's matrix
/// instruction.
enum class DeltaKernel { wgmma, mma };

/// The fastest that the current device can run.
DeltaKernel delta_kernel();

/// Advances the layer's state and window by the tokens and writes y. Chunks are counted from the call's first
/// token: a prompt cut at multiples of 64 gives the same bits as a whole one.
template <Shape S>
void delta_prefill(const DeltaPrefill& call, DeltaKernel kernel, cudaStream_t stream);

}  // namespace calla::cuda
