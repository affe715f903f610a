// The token mixer of a full-attention layer for many tokens of one sequence: norms, RoPE, KV cache, causal
// attention, output gate.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "cuda/state.h"

namespace calla::cuda {

/// One layer's call; all pointers into device memory.
struct AttentionPrefill {
  const __half* projected;  // [tokens][stride]: per query head 256 of q, 256 of gate; then k; then v
  int stride;               // a multiple of 8
  const float* query_norm;  // [256]
  const float* key_norm;    // [256]
  PageTable pages;          // of positions 0 .. position + tokens - 1
  int attention_layer;
  int tokens;
  int position;  // of the first of the tokens
  __half* y;     // [tokens][query heads * 256]; holds the turned queries in between
};

/// The ways to compute it: Hopper's warpgroups, or a warp's matrix instruction with tiles of 64 or 32 keys,
/// which need 128 or 96 KB of shared memory.
enum class AttentionKernel { wgmma, mma_64, mma_32 };

/// The fastest that the current device can run.
AttentionKernel attention_kernel();

/// Writes the tokens' keys and values into their pages, and y. Keys are taken in tiles at absolute positions:
/// how a prompt is cut does not change a bit.
template <Shape S>
void attention_prefill(const AttentionPrefill& call, AttentionKernel kernel, cudaStream_t stream);

}  // namespace calla::cuda
