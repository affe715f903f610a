// RMSNorm of the residual stream for many tokens.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

namespace calla::cuda {

/// Normed rows in two halves, high + low / 2048, which is float's precision but for the last two bits; and
/// the sum of each group of 64 of them.
struct SplitRows {
  __half* high = nullptr;  // [tokens][hidden]
  __half* low = nullptr;   // [tokens][hidden]
  float* sums = nullptr;   // [tokens][hidden / 64]
};
inline constexpr float low_scale = 1.0F / 2048;

/// out = gain x / sqrt(mean(x^2) + epsilon) for x [tokens][hidden], hidden 512 or 2048.
void rms_norm(const float* x, const float* gain, int hidden, int tokens, __half* out, cudaStream_t stream);
/// The same for the router; `high` is what the other function writes.
void rms_norm_split(const float* x, const float* gain, int hidden, int tokens, const SplitRows& out,
                    cudaStream_t stream);

}  // namespace calla::cuda
