// The experts of a row, chosen by a SIMD-group: the largest router logits, the lower id first among equals.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

constant float taken_logit = -3.4e38f;  // of an expert that has been chosen

/// The logits of experts lane, lane + 32, ...
struct LaneLogits {
  float of[experts / 32];
};

inline void load(thread LaneLogits& logits, device const float* row, uint lane) {
#pragma clang loop unroll(full)
  for (uint i = 0; i < experts / 32; ++i) logits.of[i] = row[i * 32 + lane];
}

struct Choice {
  uint expert;
  float logit;
};

/// The best expert that has not been taken, and takes it. All lanes get the same. An id in range, whatever
/// the logits are.
inline Choice take_best(thread LaneLogits& logits, uint lane) {
  float own = logits.of[0];
  uint own_expert = lane;
#pragma clang loop unroll(full)
  for (uint i = 1; i < experts / 32; ++i) {
    if (logits.of[i] > own) {
      own = logits.of[i];
      own_expert = i * 32 + lane;
    }
  }
  Choice best;
  best.logit = simd_max(own);
  best.expert = simd_min(own == best.logit ? own_expert : uint(experts) - 1);
#pragma clang loop unroll(full)
  for (uint i = 0; i < experts / 32; ++i)
    if (i * 32 + lane == best.expert) logits.of[i] = taken_logit;
  return best;
}

}  // namespace calla_kernels
