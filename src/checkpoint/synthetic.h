// Made-up weights of a true shape: for measuring speed and for testing where no checkpoint of 19 GB is at
// hand.
//
// They behave like a network that was trained: activations stay of order 1 to 10 through all layers, states
// decay by 0.9 to 0.999 a token, tokens reach all experts, and logits have a standard deviation of 3.5, so
// that a perplexity or a divergence measured on them says something about the arithmetic. What the model
// writes means nothing.
#pragma once
#include <span>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/tensor_table.h"
#include "model/shape.h"
#include "model/weights.h"

namespace calla {

/// One tensor as a file holds it.
struct StoredTensor {
  TensorSpec spec;
  std::span<const std::byte> bytes;
};

/// Weights, and the same bytes as a list in the model's order. Both live as long as weights.owner.
struct SyntheticCheckpoint {
  Weights weights;
  std::vector<StoredTensor> tensors;
};

/// A shape of model/shape.h, or its first layers, without the MTP layer. The same shape gives the same
/// weights on every machine, and fewer layers the first ones of more.
///
/// All matrices are windows, each at an offset of its own, of one random pool a little larger than the
/// largest of them: the 35B takes 0.4 GB and half a second. `weights.bytes` is what a checkpoint of them
/// takes.
SyntheticCheckpoint synthesize(const Shape& shape);
Weights synthetic_weights(const Shape& shape);

/// The configuration that goes with them: the context of the real model of the shape, and the end tokens of
/// the checkpoint whose tokenizer is borrowed.
ModelConfig synthetic_config(const Shape& shape, const ModelConfig& tokenizers);

}  // namespace calla
