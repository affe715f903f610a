// The launches of attention prefill.
#include "cuda/attention_prefill.h"
#include "cuda/attention_prefill_heads.cuh"
#include "cuda/attention_prefill_mma.cuh"
#include "cuda/attention_prefill_wgmma.cuh"
#include "cuda/device.h"

namespace calla::cuda {
namespace {

template <class Kernel>
void launch(Kernel kernel, dim3 blocks, int threads, int shared_bytes, const AttentionPrefill& call,
            std::size_t layer_offset, cudaStream_t stream) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "preparing attention prefill");
  kernel<<<blocks, threads, shared_bytes, stream>>>(call, layer_offset);
  check(cudaGetLastError(), "launching attention prefill");
}

int attribute(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&value, which, device), "asking for the device's properties");
  return value;
}

}  // namespace

AttentionKernel attention_kernel() {
  if (attribute(cudaDevAttrComputeCapabilityMajor) == 9) return AttentionKernel::wgmma;
  const int shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return shared_bytes >= attention_mma_shared_bytes(64) ? AttentionKernel::mma_64 : AttentionKernel::mma_32;
}

template <Shape S>
void attention_prefill(const AttentionPrefill& call, AttentionKernel kernel, cudaStream_t stream) {
  constexpr int heads = S.attention_heads;
  constexpr int kv_heads = S.kv_heads;
  const std::size_t layer_offset = page_offset<S>(call.attention_layer, 0, 0);
  attention_heads_kernel<heads, kv_heads>
      <<<call.tokens, 32 * attention_heads_warps<heads, kv_heads>, 0, stream>>>(call, layer_offset);
  check(cudaGetLastError(), "launching attention prefill's norms");
  const dim3 blocks(kv_heads, (call.tokens + attention::tokens_a_block - 1) / attention::tokens_a_block);
  switch (kernel) {
    case AttentionKernel::wgmma:
      launch(attention_wgmma_kernel<heads, kv_heads>, blocks, attention_wgmma_threads, attention::Ring::bytes,
             call, layer_offset, stream);
      return;
    case AttentionKernel::mma_64:
      launch(attention_mma_kernel<heads, kv_heads, 64>, blocks, attention_mma_threads,
             attention_mma_shared_bytes(64), call, layer_offset, stream);
      return;
    case AttentionKernel::mma_32:
      launch(attention_mma_kernel<heads, kv_heads, 32>, blocks, attention_mma_threads,
             attention_mma_shared_bytes(32), call, layer_offset, stream);
      return;
  }
}

template void attention_prefill<qwen36_35b>(const AttentionPrefill&, AttentionKernel, cudaStream_t);
template void attention_prefill<demo>(const AttentionPrefill&, AttentionKernel, cudaStream_t);

}  // namespace calla::cuda
