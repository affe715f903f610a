// What the model needs at the least, from its shape alone: the bytes that a decode step must move and the
// operations that a prompt takes. A measured speed means something only beside these.
#pragma once
#include "model/shape.h"

namespace calla {

/// The mean number of different experts of a layer that `tokens` tokens are sent to, if each goes to any
/// eight with the same probability.
double expected_experts(const Shape& shape, int tokens);

/// Bytes that one decode step moves when nothing stays in a cache from one step to the next.
struct DecodeBytes {
  double weights = 0;    // the active path: all layers with the experts that are hit, norms, head; read once
  double embedding = 0;  // a row for each slot
  double states = 0;     // float32 DeltaNet states and convolution windows, read and written
  double kv_cache = 0;   // keys and values of the context in bfloat16, read

  double total() const { return weights + embedding + states + kv_cache; }
};

/// Of a step of `batch` slots that hold `context` tokens each. Weights are counted as the checkpoint stores
/// them: 4 or 8 bits, a scale and a bias for 64 columns, vectors in bfloat16.
DecodeBytes decode_bytes(const Shape& shape, int batch, int context);

/// Operations (a multiply-add is two) that a prompt of `tokens` tokens takes: all products with weights,
/// attention to all earlier tokens, the DeltaNet recurrence, and the logits of the last token. Norms and
/// activation functions are left out: they are a thousandth of it.
double prefill_operations(const Shape& shape, int tokens);

}  // namespace calla
