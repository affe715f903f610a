// What the kernels of the experts of decode share, for few rows and for many: the choice and its shares.
#pragma once
#include "model/shape.h"

namespace calla::cuda {

constexpr int top = Shape::experts_per_token;

// A row of router tiles is two: the low and the high halves of the codes.
constexpr int router_planes = 2;

/// The chosen experts, largest logit first, the lower id first among equals.
struct Choice {
  int experts[top];
  float logits[top];
};

/// A logit's bits as a number that is the larger the larger the logit is.
__device__ inline unsigned ordered_bits(float logit) {
  const unsigned bits = __float_as_uint(logit);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// With its expert, a number that is the larger the earlier it is chosen.
__device__ inline unsigned long long ranked(unsigned ordered, int expert) {
  return static_cast<unsigned long long>(ordered) << 32U | ~static_cast<unsigned>(expert);
}
__device__ inline int ranked_expert(unsigned long long key) {
  return static_cast<int>(~static_cast<unsigned>(key));
}
__device__ inline float ranked_logit(unsigned long long key) {
  const auto ordered = static_cast<unsigned>(key >> 32U);
  return __uint_as_float((ordered & 0x80000000U) != 0 ? ordered ^ 0x80000000U : ~ordered);
}

/// The softmax over the chosen, of one. Its sums are not contracted, whatever the kernel.
__device__ inline float share_of(const Choice& chosen, int place) {
  float total = 0;
#pragma unroll
  for (const float logit : chosen.logits) total = __fadd_rn(total, expf(logit - chosen.logits[0]));
  return expf(chosen.logits[place] - chosen.logits[0]) / total;
}

}  // namespace calla::cuda
