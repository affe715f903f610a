#include "cuda/pool.h"

#include <cstdint>

#include <fmt/format.h>

#include "cuda/device.h"
#include "model/backend.h"
#include "model/memory_plan.h"

namespace calla::cuda {

PooledMemory::PooledMemory(std::size_t bytes, cudaStream_t stream) : bytes_(bytes), stream_(stream) {
  void* data = nullptr;
  const cudaError_t status = cudaMallocAsync(&data, bytes, stream);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory(
        "the GPU", fmt::format("has no room for {} more of keys, values and states", format_bytes(bytes)),
        "other programs use its memory; close them, or ask for a shorter --context or fewer --slots");
  }
  check(status, "allocating memory");
  data_ = static_cast<std::byte*>(data);
}

// Of a device that has failed there is nothing to give back.
PooledMemory::~PooledMemory() { cudaFreeAsync(data_, stream_); }

void keep_pooled_memory(std::size_t bytes) {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the device");
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device), "asking for the memory pool");
  std::uint64_t threshold = bytes;
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
        "setting up the memory pool");
}

}  // namespace calla::cuda
