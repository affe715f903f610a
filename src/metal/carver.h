// Many arrays in one buffer.
#pragma once
#include <cstddef>

#include "metal/device.h"

namespace calla::metal {

/// Hands out the parts of one buffer, or, before there is one, measures them.
class Carver {
 public:
  Carver() = default;
  explicit Carver(const Buffer& buffer) : buffer_(&buffer) {}

  template <class T>
  View take(std::size_t count) {
    constexpr std::size_t alignment = 256;
    View view;
    view.buffer = buffer_;
    view.offset = used_;
    used_ += (count * sizeof(T) + alignment - 1) / alignment * alignment;
    return view;
  }
  std::size_t used() const { return used_; }

 private:
  const Buffer* buffer_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace calla::metal
