// The forward pass for many tokens of one sequence.
#pragma once
#include <cstddef>
#include <span>

#include "base/token.h"
#include "cuda/attention_prefill.h"
#include "cuda/delta_prefill.h"
#include "cuda/device.h"
#include "cuda/routing.h"
#include "cuda/sequence.h"
#include "cuda/upload.h"

namespace calla::cuda {

/// A prompt may be cut at multiples of this without a bit of difference: DeltaNet's chunks begin there.
inline constexpr int prefill_grain_tokens = delta_chunk;

/// Tokens a pass takes at most. Every pass reads nearly all experts, so it should be long; a shorter context
/// has no use for more than its length.
int prefill_chunk_tokens(int context);

/// The bytes a Prefill allocates.
std::size_t prefill_bytes(const Shape& shape, int context);

template <class Model>
class Prefill {
 public:
  /// Weights and sequences must outlive it.
  Prefill(const DeviceWeights& weights, const Sequences& sequences, int context, cudaStream_t stream);

  int chunk() const { return chunk_; }

  /// Appends at most chunk() tokens at a position of a slot, which has pages for them. Returns the residual
  /// stream of the last one, [hidden] in device memory, valid until the next call.
  const float* run(int slot, int position, std::span<const Token> tokens);

 private:
  void layer(int index, int slot, int position, int tokens);
  void experts(const DeviceLayer& layer, int tokens);

  const DeviceWeights& weights_;
  const Sequences& sequences_;
  int chunk_;
  AttentionKernel attention_;
  DeltaKernel delta_kernel_;
  cudaStream_t stream_;
  // The shared expert is multiplied beside the router, whose kernels leave most of the GPU idle.
  Stream side_ = make_stream();
  Event forked_ = make_event();
  Event joined_ = make_event();
  DeviceArray<std::byte> memory_;
  // Workspace of `chunk_` tokens
  int* tokens_;
  float* x_;           // [hidden], the residual stream
  SplitRows normed_;   // [hidden]
  __half* projected_;  // [widest first projection]
  float* gates_;       // [2 delta value heads]
  __half* mixed_;      // [widest mixer output]
  std::byte* delta_;   // delta_prefill_workspace
  float* router_;      // [experts + 1]
  Routes routes_;
  __half* inner_;           // [8][expert_hidden]
  __half* answers_;         // [8][hidden]
  __half* shared_inner_;    // [shared_expert_hidden]
  __half* shared_answers_;  // [hidden]
};

}  // namespace calla::cuda
