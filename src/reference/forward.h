// The whole forward pass in float32, in the model's order: the oracle of every other backend's tests. Prefill
// and decode are the same code; a decoded token is a prefill of one.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "base/token.h"
#include "model/shape.h"
#include "model/weights.h"

namespace calla::reference {

/// Keys (after norm and RoPE) and values of one attention layer, [positions, kv_dim] each.
struct KvCache {
  std::vector<float> keys;
  std::vector<float> values;
};

/// One Gated DeltaNet layer: a matrix [128 (k), 128 (v)] a value head, and the last three inputs of the
/// convolution.
struct DeltaState {
  std::vector<float> recurrent;  // [delta_value_heads, 128, 128]
  std::vector<float> window;     // [3, convolution_channels], oldest first
};

/// Everything that a sequence carries from one token to the next.
template <Shape S>
struct SequenceState {
  /// `layers` as in the weights.
  explicit SequenceState(int layers = S.layers);

  int position = 0;
  std::vector<KvCache> attention;  // one an attention layer
  std::vector<DeltaState> delta;   // one a DeltaNet layer
  KvCache mtp;                     // of the multi-token-prediction layer, when it is used
};

/// Shown the residual stream [tokens, hidden]: stage 0 is the embedding, stage i the output of layer i - 1.
using StageObserver = std::function<void(int stage, std::span<const float> hidden)>;

/// Appends tokens to the sequence and returns the hidden states after the final norm, [tokens, hidden].
/// `state` has been made for as many layers as the weights have.
template <Shape S>
std::vector<float> forward(const Weights& weights, SequenceState<S>& state, std::span<const Token> tokens,
                           const StageObserver& observe = {});

/// The logits [tokens, vocabulary] of final hidden states [tokens, hidden].
template <Shape S>
std::vector<float> logits(const Weights& weights, std::span<const float> hidden);

/// Multi-token prediction. For each t, `hidden[t]` is the final hidden state at a position and `next[t]` the
/// token that follows it; returns the MTP layer's final hidden states, whose logits predict the token after
/// that one. Needs weights.mtp. `position` is that of hidden[0]; the layer's own KV cache in `state` must
/// hold exactly the positions before it.
template <Shape S>
std::vector<float> forward_mtp(const Weights& weights, SequenceState<S>& state, int position,
                               std::span<const float> hidden, std::span<const Token> next);

}  // namespace calla::reference
