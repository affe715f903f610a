// A device with little memory left.
#pragma once
#include <cstddef>
#include <vector>

#include "cuda/device.h"

namespace calla::test {

/// While it lasts, stream-ordered memory comes from a pool in which about so many bytes are left, whatever
/// the device has. What was taken from it may outlive it.
class LimitedPool {
 public:
  explicit LimitedPool(std::size_t left) {
    cuda::check(cudaDeviceGetMemPool(&before_, 0), "asking for the memory pool");
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = 0;
    properties.maxSize = std::size_t{64} << 20U;
    cuda::check(cudaMemPoolCreate(&pool_, &properties), "making a memory pool");
    cuda::check(cudaDeviceSetMemPool(0, pool_), "choosing a memory pool");
    // The pool's own steps of growth do not matter when all but what is to be left is taken.
    constexpr std::size_t piece = std::size_t{64} << 10U;
    void* kept = left > 0 ? take(left) : nullptr;
    while (void* memory = take(piece)) taken_.push_back(memory);
    if (kept != nullptr) cuda::check(cudaFreeAsync(kept, stream_.get()), "giving memory back");
    cuda::check(cudaStreamSynchronize(stream_.get()), "giving memory back");
  }
  ~LimitedPool() {
    for (void* memory : taken_) cudaFreeAsync(memory, stream_.get());
    cudaDeviceSynchronize();
    cudaDeviceSetMemPool(0, before_);
    cudaMemPoolDestroy(pool_);
  }
  LimitedPool(const LimitedPool&) = delete;
  LimitedPool& operator=(const LimitedPool&) = delete;
  LimitedPool(LimitedPool&&) = delete;
  LimitedPool& operator=(LimitedPool&&) = delete;

 private:
  /// Null where nothing is left.
  void* take(std::size_t bytes) {
    void* memory = nullptr;
    const cudaError_t status = cudaMallocAsync(&memory, bytes, stream_.get());
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    cuda::check(status, "taking memory");
    return memory;
  }

  cuda::Stream stream_ = cuda::make_stream();
  cudaMemPool_t before_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
  std::vector<void*> taken_;
};

}  // namespace calla::test
