#include "cuda/device.h"
#include "cuda/launch.h"
#include "cuda/sample_draw.cuh"
#include "cuda/sample_scan.cuh"

namespace calla::cuda {
namespace {

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
  launch_chained(stream, {dim3(scan_blocks, count), scan_threads}, scan_logits<S.vocabulary>, step);
  launch_chained(stream, {dim3(count), draw_threads}, draw_tokens<S.vocabulary>, step);
}

template void launch_sample<qwen36_35b>(const SampleStep&, int, cudaStream_t);
template void launch_sample<demo>(const SampleStep&, int, cudaStream_t);

void launch_place_slot(int* position, int* ended, int value, cudaStream_t stream) {
  place_slot<<<1, 1, 0, stream>>>(position, ended, value);
  check(cudaGetLastError(), "launching the placing of a slot");
}

}  // namespace calla::cuda
