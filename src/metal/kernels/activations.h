// Functions of one activation, as exact as float32 allows.
#pragma once
#include <metal_stdlib>

using namespace metal;

namespace calla_kernels {

inline float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }
inline float silu(float x) { return x / (1.0f + precise::exp(-x)); }

/// log(1 + exp(x)). The quotient makes up for what 1 + y loses of a small y.
inline float softplus(float x) {
  const float y = precise::exp(-fabs(x));
  const float z = 1.0f + y;
  const float log1p = z == 1.0f ? y : y * (precise::log(z) / (z - 1.0f));
  return fmax(x, 0.0f) + log1p;
}

}  // namespace calla_kernels
