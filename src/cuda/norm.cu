// y = gain x / sqrt(mean(x^2) + epsilon), float in, half out, rounded once; or in two halves.
// A block has a row, a thread 8 neighbouring elements. Bytes a token: 4 hidden in, 2 or 4 hidden out; bound
// by memory.
#include "cuda/device.h"
#include "cuda/norm.cuh"
#include "cuda/norm.h"

namespace calla::cuda {
namespace {

template <int hidden, bool split>
__global__ void __launch_bounds__(row_threads(hidden))
    norm_kernel(const float* x, const float* gain, SplitRows out) {
  const int column = 8 * static_cast<int>(threadIdx.x);
  const std::size_t at = static_cast<std::size_t>(blockIdx.x) * hidden + static_cast<std::size_t>(column);
  float v[8];
  float g[8];
  load_floats(x + at, v);
  load_floats(gain + column, g);
  const float factor = rms_factor<hidden>(v);
#pragma unroll
  for (int j = 0; j < 8; ++j) g[j] = v[j] * factor * g[j];
  const uint4 high = to_halves(g);
  *reinterpret_cast<uint4*>(out.high + at) = high;
  if constexpr (split) {
    const auto* rounded = reinterpret_cast<const __half*>(&high);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      sum += g[j];
      g[j] = (g[j] - __half2float(rounded[j])) / low_scale;
    }
    *reinterpret_cast<uint4*>(out.low + at) = to_halves(g);
    // Eight lanes have a group.
#pragma unroll
    for (int apart = 4; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0U, sum, apart);
    if (column % 64 == 0) out.sums[at / 64] = sum;
  }
}

template <int hidden, bool split>
void launch_rows(const float* x, const float* gain, int tokens, const SplitRows& out, cudaStream_t stream) {
  norm_kernel<hidden, split><<<static_cast<unsigned>(tokens), row_threads(hidden), 0, stream>>>(x, gain, out);
  check(cudaGetLastError(), "launching a norm");
}

template <bool split>
void launch(const float* x, const float* gain, int hidden, int tokens, const SplitRows& out,
            cudaStream_t stream) {
  if (hidden == qwen36_35b.hidden) {
    launch_rows<qwen36_35b.hidden, split>(x, gain, tokens, out, stream);
  } else {
    launch_rows<demo.hidden, split>(x, gain, tokens, out, stream);
  }
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
