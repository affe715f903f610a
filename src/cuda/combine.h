// The end of a layer: what the experts answered joins the residual stream.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "model/shape.h"

namespace calla::cuda {

/// What becomes of a token's routes, in ascending order of experts.
struct Answers {
  const __half* experts = nullptr;  // [routes][hidden], answer_scale times the answers
  const __half* shared = nullptr;   // [tokens][hidden], answer_scale times the shared expert's
  const int* positions = nullptr;   // [tokens][8], the routes
  const float* shares = nullptr;    // [tokens][8]
  const float* logits = nullptr;    // [tokens][experts + 1], the last one the shared expert's gate
};

/// x [tokens][hidden] += sum over the routes of share * answer, then + sigmoid(gate) * shared answer. With
/// `normed`, [tokens][hidden], also what rms_norm makes of the new x with `gain`.
template <Shape S>
void combine(const Answers& answers, int tokens, float* x, const float* gain, __half* normed,
             cudaStream_t stream);

}  // namespace calla::cuda
