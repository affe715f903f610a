// CUDA's handles as owners, and its error codes as calla::Error.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include <cuda_runtime_api.h>

namespace calla::cuda {

/// Throws Error, or DeviceLost, that names what was being done, CUDA's own words, and what to do about it.
void check(cudaError_t status, std::string_view doing);

void* device_allocate(std::size_t bytes);
void device_free(void* data) noexcept;
void* pinned_allocate(std::size_t bytes);
void pinned_free(void* data) noexcept;

/// An array in device memory. Allocation throws OutOfMemory with the bytes asked for and the bytes free.
template <class T>
class DeviceArray {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  static constexpr std::size_t element = sizeof(T);  // NOLINT(bugprone-sizeof-expression): T may be a pointer

  DeviceArray() = default;
  explicit DeviceArray(std::size_t count)
      : data_(static_cast<T*>(device_allocate(count * element))), count_(count) {}

  T* data() const { return data_.get(); }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * element; }

 private:
  struct Free {
    void operator()(T* data) const noexcept { device_free(data); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t count_ = 0;
};

/// An array in pinned host memory that the device can read and write, too.
template <class T>
class PinnedArray {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  PinnedArray() = default;
  explicit PinnedArray(std::size_t count)
      : data_(static_cast<T*>(pinned_allocate(count * sizeof(T)))), count_(count) {}
  T* data() const { return data_.get(); }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t index) const { return data_.get()[index]; }

 private:
  struct Free {
    void operator()(T* data) const noexcept { pinned_free(data); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t count_ = 0;
};

struct DestroyStream {
  void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
};
struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const noexcept { cudaGraphExecDestroy(graph); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, DestroyEvent>;
using GraphExec = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph>;

Stream make_stream();
Event make_event();

/// Copies to or from device memory and waits.
void upload(void* to, const void* from, std::size_t bytes);
void download(void* to, const void* from, std::size_t bytes);

}  // namespace calla::cuda
