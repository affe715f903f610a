// Arrays in one region of device memory.
#pragma once
#include <cstddef>

namespace calla::cuda {

/// Lays arrays out in memory, each where 256 bytes align; without memory, only counts.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}

  template <class T>
  void take(T*& array, std::size_t count) {
    constexpr std::size_t line = 256;
    array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (count * sizeof(T) + line - 1) / line * line;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

}  // namespace calla::cuda
