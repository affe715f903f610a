// What the tests of decode's kernels share.
#pragma once
#include <cstddef>

#include "cuda/device.h"
#include "cuda/launch.h"

namespace calla::cuda {

inline std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

/// Steps are launched as the program does it: as a chain in a stream of their own.
inline cudaStream_t stream() {
  static const Stream only = make_stream();
  return only.get();
}

}  // namespace calla::cuda
