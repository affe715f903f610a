#include "cuda/device.h"

#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "cuda/launch.h"
#include "model/backend.h"
#include "model/memory_plan.h"

namespace calla::cuda {
namespace {

std::string advice(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "free memory of the GPU, or ask for a shorter --context or fewer --slots";
    case cudaErrorInsufficientDriver:
      return "update the NVIDIA driver, or run with --backend cpu";
    case cudaErrorNoDevice:
      return "run with --backend cpu";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return "this build has no code for this GPU: build with CALLA_CUDA_ARCHITECTURES set to its compute "
             "capability, "
             "or run with --backend cpu";
    default:
      return "start calla again; if it happens again, look at the system's log for the GPU's own report";
  }
}

/// Whether CUDA refuses all further work of the process after this.
bool is_final(cudaError_t status) {
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check(cudaError_t status, std::string_view doing) {
  if (status == cudaSuccess) return;
  const std::string problem = fmt::format("failed while {}: {}", doing, cudaGetErrorString(status));
  if (is_final(status)) throw DeviceLost("the GPU", problem, advice(status));
  throw Error("the GPU", problem, advice(status));
}

void* device_allocate(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes == 0 ? 1 : bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error("the GPU",
                fmt::format("has no room for {}: {} of {} are free", format_bytes(bytes), format_bytes(free),
                            format_bytes(total)),
                advice(status));
  }
  check(status, "allocating memory");
  return data;
}

void device_free(void* data) noexcept { cudaFree(data); }

void* pinned_allocate(std::size_t bytes) {
  void* data = nullptr;
  check(cudaHostAlloc(&data, bytes == 0 ? 1 : bytes, cudaHostAllocMapped | cudaHostAllocPortable),
        "allocating pinned memory");
  return data;
}

void pinned_free(void* data) noexcept { cudaFreeHost(data); }

bool has_programmatic_launch() {
  static const bool answer = [] {
    int device = 0;
    int major = 0;
    check(cudaGetDevice(&device), "asking for the device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for its kind");
    constexpr int hopper = 9;
    return major >= hopper;
  }();
  return answer;
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  return Stream(stream);
}

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  return Event(event);
}

void upload(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copying to the GPU");
}
void download(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copying from the GPU");
}

}  // namespace calla::cuda
