// Memory that comes and goes while the model runs: pages of keys and values, snapshots. Taken and given back
// in the order of a stream, so that neither waits for the device.
#pragma once
#include <cstddef>

#include <cuda_runtime_api.h>

namespace calla::cuda {

/// Device memory that lives as long as this; its owner outlives the stream's work on it by giving it back in
/// the stream's order. The streams must outlive it.
class PooledMemory {
 public:
  /// Throws OutOfMemory when the device has no room.
  PooledMemory(std::size_t bytes, cudaStream_t stream);
  ~PooledMemory();
  PooledMemory(const PooledMemory&) = delete;
  PooledMemory& operator=(const PooledMemory&) = delete;
  PooledMemory(PooledMemory&&) = delete;
  PooledMemory& operator=(PooledMemory&&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// The stream in whose order it is given back, if another one uses it last.
  void give_back_in(cudaStream_t stream) { stream_ = stream; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
  cudaStream_t stream_;
};

/// How much of what was given back is kept for the next who asks, rather than returned to other programs.
void keep_pooled_memory(std::size_t bytes);

}  // namespace calla::cuda
