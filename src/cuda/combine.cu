// x[t] += sum over i of share[t][i] answer[route i of t] + sigmoid(gate[t]) shared[t]; then RMSNorm.
// Float arithmetic in the order of the formula, experts ascending; answers are half, scaled by a power of
// two. A warp has a token, 8 neighbouring elements a lane. Bytes a token: 18 hidden of answers, 8 of x, 2 of
// the normed row; bound by memory.
#include "cuda/combine.h"
#include "cuda/device.h"
#include "cuda/gemm.h"
#include "cuda/norm.cuh"

namespace calla::cuda {
namespace {

constexpr int warps = 4;
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
__global__ void __launch_bounds__(32 * warps)
    combine_kernel(Answers answers, int tokens, float* x, const float* gain, __half* normed) {
  constexpr int count = hidden / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int token = static_cast<int>(blockIdx.x) * warps + static_cast<int>(threadIdx.x) / 32;
  if (token >= tokens) return;
  const auto t = static_cast<std::size_t>(token);
  const std::size_t row = t * hidden;

  float shares[top];
  const __half* from[top];
#pragma unroll
  for (int i = 0; i < top; ++i) {
    shares[i] = answers.shares[t * top + i];
    from[i] = answers.experts + static_cast<std::size_t>(answers.positions[t * top + i]) * hidden;
  }
  const float gate = 1.0F / (1.0F + expf(-answers.logits[t * (experts + 1) + experts]));

  float v[count];
#pragma unroll
  for (int i = 0; i < count; i += 8) {
    const int column = 32 * i + 8 * lane;
    uint4 parts[top];
#pragma unroll
    for (int j = 0; j < top; ++j) parts[j] = load_halves(from[j] + column);
    const uint4 shared = load_halves(answers.shared + row + column);
    load_floats(x + row + column, v + i);
    float sum[8] = {};
#pragma unroll
    for (int j = 0; j < top; ++j) add_scaled(parts[j], shares[j], sum);
    add_scaled(shared, gate, sum);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[i + j] = fmaf(1.0F / answer_scale, sum[j], v[i + j]);
    *reinterpret_cast<float4*>(x + row + column) = *reinterpret_cast<const float4*>(v + i);
    *reinterpret_cast<float4*>(x + row + column + 4) = *reinterpret_cast<const float4*>(v + i + 4);
  }
  if (normed == nullptr) return;

  const float factor = rms_factor(v);
#pragma unroll
  for (int i = 0; i < count; i += 8) {
    const int column = 32 * i + 8 * lane;
    float g[8];
    load_floats(gain + column, g);
#pragma unroll
    for (int j = 0; j < 8; ++j) g[j] = v[i + j] * factor * g[j];
    *reinterpret_cast<uint4*>(normed + row + column) = to_halves(g);
  }
}

}  // namespace

template <Shape S>
void combine(const Answers& answers, int tokens, float* x, const float* gain, __half* normed,
             cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((tokens + warps - 1) / warps);
  combine_kernel<S.hidden, S.experts><<<blocks, 32 * warps, 0, stream>>>(answers, tokens, x, gain, normed);
  check(cudaGetLastError(), "launching the combination of experts");
}

template void combine<qwen36_35b>(const Answers&, int, float*, const float*, __half*, cudaStream_t);
template void combine<demo>(const Answers&, int, float*, const float*, __half*, cudaStream_t);

}  // namespace calla::cuda
