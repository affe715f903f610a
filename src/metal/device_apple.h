// Apple's Metal behind device.h. Built on macOS only.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "metal/device.h"
#include "model/shape.h"

namespace calla::metal {

/// This machine's GPU, or why there is none that can be used.
struct AppleGpu {
  std::string name;               // empty where it cannot be used
  std::string reason;             // empty where it can
  std::string architecture;       // "applegpu_g13s"
  std::uint64_t working_set = 0;  // bytes that all buffers may have together
};

/// Takes some milliseconds: nothing is compiled.
AppleGpu find_apple_device();

/// Opens the GPU for models of this shape. Kernels are compiled when they are asked for. Throws Error.
std::unique_ptr<Device> make_apple_device(const Shape& shape);

}  // namespace calla::metal
