// Anonymous memory in large pages where the system has them: a stream of weights over 4 KiB pages costs a
// sixth to a third more time.
#pragma once
#include <cstddef>
#include <span>

namespace calla::cpu {

/// Zeroed memory, committed page by page as it is first written.
class Region {
 public:
  Region() = default;
  /// Throws Error when the system refuses.
  explicit Region(std::size_t bytes);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  /// The region as an array.
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;  // aligned to 2 MiB
  std::size_t size_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
};

}  // namespace calla::cpu
