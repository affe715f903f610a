// x[t] += sum over i of share[t][i] answer[route i of t] + sigmoid(gate[t]) shared[t]; then RMSNorm.
// Float arithmetic in the order of the formula, experts ascending; answers are half, scaled by a power of
// two. A block has a token, a thread 8 neighbouring elements. Bytes a token: 18 hidden of answers, 8 of x, 2
// of the normed row; bound by memory.
#include "cuda/combine.h"
#include "cuda/device.h"
#include "cuda/gemm.h"
#include "cuda/norm.cuh"

namespace calla::cuda {
namespace {

constexpr int top = Shape::experts_per_token;

__device__ inline uint4 load_halves(const __half* from) {
  return __ldcs(reinterpret_cast<const uint4*>(from));
}

/// sum += factor * eight halves
__device__ inline void add_scaled(const uint4& halves, float factor, float (&sum)[8]) {
  const auto* pairs = reinterpret_cast<const __half2*>(&halves);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(pairs[i]);
    sum[2 * i] = fmaf(factor, pair.x, sum[2 * i]);
    sum[2 * i + 1] = fmaf(factor, pair.y, sum[2 * i + 1]);
  }
}

template <int hidden, int experts>
__global__ void __launch_bounds__(row_threads(hidden))
    combine_kernel(Answers answers, float* x, const float* gain, __half* normed) {
  const auto t = static_cast<std::size_t>(blockIdx.x);
  const int column = 8 * static_cast<int>(threadIdx.x);
  const std::size_t at = t * hidden + static_cast<std::size_t>(column);
  uint4 parts[top];
#pragma unroll
  for (int i = 0; i < top; ++i)
    parts[i] = load_halves(answers.experts +
                           static_cast<std::size_t>(answers.positions[t * top + i]) * hidden + column);
  const uint4 shared = load_halves(answers.shared + at);
  float v[8];
  load_floats(x + at, v);
  const float gate = 1.0F / (1.0F + expf(-answers.logits[t * (experts + 1) + experts]));

  float sum[8] = {};
#pragma unroll
  for (int i = 0; i < top; ++i) add_scaled(parts[i], answers.shares[t * top + i], sum);
  add_scaled(shared, gate, sum);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = fmaf(1.0F / answer_scale, sum[j], v[j]);
  *reinterpret_cast<float4*>(x + at) = *reinterpret_cast<const float4*>(v);
  *reinterpret_cast<float4*>(x + at + 4) = *reinterpret_cast<const float4*>(v + 4);
  if (normed == nullptr) return;

  float g[8];
  load_floats(gain + column, g);
  const float factor = rms_factor<hidden>(v);
#pragma unroll
  for (int j = 0; j < 8; ++j) g[j] = v[j] * factor * g[j];
  *reinterpret_cast<uint4*>(normed + at) = to_halves(g);
}

}  // namespace

template <Shape S>
void combine(const Answers& answers, int tokens, float* x, const float* gain, __half* normed,
             cudaStream_t stream) {
  combine_kernel<S.hidden, S.experts>
      <<<static_cast<unsigned>(tokens), row_threads(S.hidden), 0, stream>>>(answers, x, gain, normed);
  check(cudaGetLastError(), "launching the combination of experts");
}

template void combine<qwen36_35b>(const Answers&, int, float*, const float*, __half*, cudaStream_t);
template void combine<demo>(const Answers&, int, float*, const float*, __half*, cudaStream_t);

}  // namespace calla::cuda
