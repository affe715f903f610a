#include "cuda/device.h"
#include "cuda/sample_draw.cuh"
#include "cuda/sample_scan.cuh"

namespace calla::cuda {
namespace {

/// A launch that may begin while its predecessor in the stream still runs.
void launch_in_chain(void (*kernel)(SampleStep), dim3 blocks, int threads, const SampleStep& step,
                     cudaStream_t stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, step), "launching the sampling of a step");
}

__global__ void place_slot(int* position, int* ended, int value) {
  wait_for_predecessor();
  release_successor();
  *position = value;
  *ended = 0;
}

}  // namespace

template <Shape S>
void launch_sample(const SampleStep& step, int rows, cudaStream_t stream) {
  constexpr unsigned scan_blocks = (S.vocabulary + scan_tokens - 1) / scan_tokens;
  const auto count = static_cast<unsigned>(rows);
  launch_in_chain(scan_logits<S.vocabulary>, dim3(scan_blocks, count), scan_threads, step, stream);
  launch_in_chain(draw_tokens<S.vocabulary>, dim3(count), draw_threads, step, stream);
}

template void launch_sample<qwen36_35b>(const SampleStep&, int, cudaStream_t);
template void launch_sample<demo>(const SampleStep&, int, cudaStream_t);

void launch_place_slot(int* position, int* ended, int value, cudaStream_t stream) {
  place_slot<<<1, 1, 0, stream>>>(position, ended, value);
  check(cudaGetLastError(), "launching the placing of a slot");
}

}  // namespace calla::cuda
