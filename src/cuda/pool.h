// Memory that comes and goes while the model runs: pages of keys and values, snapshots. Taken and given back
// in the order of a stream, so that neither waits for the device.
#pragma once
#include <cstddef>
#include <memory>

#include <cuda_runtime_api.h>

namespace calla::cuda {

/// Device memory that lives as long as this; its owner outlives the stream's work on it by giving it back in
/// the stream's order. The stream must outlive it.
class PooledMemory {
 public:
  /// Throws Error when the device has no room.
  PooledMemory(std::size_t bytes, cudaStream_t stream);
  ~PooledMemory();
  PooledMemory(const PooledMemory&) = delete;
  PooledMemory& operator=(const PooledMemory&) = delete;
  PooledMemory(PooledMemory&&) = delete;
  PooledMemory& operator=(PooledMemory&&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
  cudaStream_t stream_;
};

/// A page of keys and values, shared by the sequences and snapshots that have its positions in common.
using Page = std::shared_ptr<const PooledMemory>;

/// How much of what was given back is kept for the next who asks, rather than returned to other programs.
void keep_pooled_memory(std::size_t bytes);

}  // namespace calla::cuda
