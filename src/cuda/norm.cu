// y = gain x / sqrt(mean(x^2) + epsilon), float in, half out, rounded once; or in two halves.
// A warp has a row, 8 neighbouring elements a lane; sums in a fixed order. Bytes a token: 4 hidden in, 2 or 4
// hidden out; bound by memory.
#include "cuda/device.h"
#include "cuda/norm.cuh"
#include "cuda/norm.h"

namespace calla::cuda {
namespace {

constexpr int warps = 8;

template <int hidden, bool split>
__global__ void __launch_bounds__(32 * warps)
    norm_kernel(const float* x, const float* gain, int tokens, SplitRows out) {
  constexpr int count = hidden / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int token = static_cast<int>(blockIdx.x) * warps + static_cast<int>(threadIdx.x) / 32;
  if (token >= tokens) return;
  const std::size_t row = static_cast<std::size_t>(token) * hidden;
  float v[count];
#pragma unroll
  for (int i = 0; i < count; i += 8) load_floats(x + row + 32 * i + 8 * lane, v + i);
  const float factor = rms_factor(v);
#pragma unroll
  for (int i = 0; i < count; i += 8) {
    const int column = 32 * i + 8 * lane;
    float g[8];
    load_floats(gain + column, g);
#pragma unroll
    for (int j = 0; j < 8; ++j) g[j] = v[i + j] * factor * g[j];
    const uint4 high = to_halves(g);
    *reinterpret_cast<uint4*>(out.high + row + column) = high;
    if constexpr (split) {
      const auto* rounded = reinterpret_cast<const __half*>(&high);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sum += g[j];
        g[j] = (g[j] - __half2float(rounded[j])) / low_scale;
      }
      *reinterpret_cast<uint4*>(out.low + row + column) = to_halves(g);
      // Eight lanes have a group.
#pragma unroll
      for (int apart = 4; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0U, sum, apart);
      if (lane % 8 == 0) out.sums[row / 64 + static_cast<std::size_t>(column / 64)] = sum;
    }
  }
}

template <bool split>
void launch(const float* x, const float* gain, int hidden, int tokens, const SplitRows& out,
            cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((tokens + warps - 1) / warps);
  const auto kernel =
      hidden == qwen36_35b.hidden ? norm_kernel<qwen36_35b.hidden, split> : norm_kernel<demo.hidden, split>;
  kernel<<<blocks, 32 * warps, 0, stream>>>(x, gain, tokens, out);
  check(cudaGetLastError(), "launching a norm");
}

}  // namespace

void rms_norm(const float* x, const float* gain, int hidden, int tokens, __half* out, cudaStream_t stream) {
  launch<false>(x, gain, hidden, tokens, {.high = out}, stream);
}

void rms_norm_split(const float* x, const float* gain, int hidden, int tokens, const SplitRows& out,
                    cudaStream_t stream) {
  launch<true>(x, gain, hidden, tokens, out, stream);
}

}  // namespace calla::cuda
