#include "cuda/device.h"

#include <algorithm>

#include <fmt/format.h>

#include "cuda/fault_of.h"
#include "cuda/launch.h"
#include "model/backend.h"
#include "model/memory_plan.h"

namespace calla::cuda {
namespace {

FaultKind kind_of(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return FaultKind::out_of_memory;
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
      return FaultKind::driver;
    case cudaErrorSystemDriverMismatch:
      return FaultKind::other_driver;
    case cudaErrorNoDevice:
      return FaultKind::no_device;
    case cudaErrorDevicesUnavailable:
      return FaultKind::busy;
    case cudaErrorSystemNotReady:
      return FaultKind::not_ready;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return FaultKind::no_code;
    // After these CUDA refuses all further work of the process.
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
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
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
      return FaultKind::lost;
    default:
      return FaultKind::other;
  }
}

std::size_t attribute_bytes(cudaDeviceAttr attribute) {
  int device = 0;
  int bytes = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&bytes, attribute, device), "asking for shared memory");
  return static_cast<std::size_t>(bytes);
}

}  // namespace

Fault fault_of(cudaError_t status) { return {.kind = kind_of(status), .words = cudaGetErrorString(status)}; }

void check(cudaError_t status, std::string_view doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // so that it is not taken for a fault of the next launch
  Fault fault = fault_of(status);
  // Newer drivers know other faults for good, too: they come again whatever is asked.
  if (fault.kind == FaultKind::other && cudaDeviceSynchronize() == status) fault.kind = FaultKind::lost;
  cudaGetLastError();
  throw_fault(fault, doing);
}

void* device_allocate(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes == 0 ? 1 : bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for its memory");
    throw OutOfMemory("the GPU",
                      fmt::format("has no room for {}: {} of {} are free", format_bytes(bytes),
                                  format_bytes(free), format_bytes(total)),
                      "close other programs that use it, or ask for a shorter --context or fewer --slots");
  }
  check(status, "allocating memory");
  return data;
}

void device_free(void* data) noexcept { cudaFree(data); }

void* pinned_allocate(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&data, bytes == 0 ? 1 : bytes, cudaHostAllocMapped | cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory("memory",
                      fmt::format("there is no room for {} that stay in place", format_bytes(bytes)),
                      "close other programs");
  }
  check(status, "allocating pinned memory");
  return data;
}

void pinned_free(void* data) noexcept { cudaFreeHost(data); }

std::size_t most_shared_memory() { return attribute_bytes(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

std::size_t spread(std::size_t needed, SmShare share) {
  if (!has_programmatic_launch()) return needed;  // one kernel at a time: its blocks spread by themselves
  const std::size_t half = attribute_bytes(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2;
  // The largest of decode's blocks, and what the system keeps of each, is not more than half by more.
  constexpr std::size_t most_more = std::size_t{10} * 1024;
  constexpr std::size_t least_more = 512;
  return std::max(needed, share == SmShare::more ? half + least_more : half - most_more);
}

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
