// Launching kernels, alone or as links of a chain.
#pragma once
#include <cstddef>
#include <utility>

#include <cuda_runtime.h>

#include "cuda/device.h"

namespace calla::cuda {

struct Grid {
  dim3 blocks;
  int threads = 0;
  std::size_t shared = 0;  // bytes of dynamic shared memory
};

/// Of the shared memory of an SM: more than half, or all but that.
enum class SmShare { more, less };

/// Shared memory for a block of which no SM is to have two while another has none: its share, or what it
/// needs if that is more. Kernels in a row take turns, so that a block of each fits.
std::size_t spread(std::size_t needed, SmShare share);

/// The most shared memory that a block of the current device gets, in bytes: 227 KB on Hopper, 163 KB on
/// A100, 99 KB on GPUs for screens.
std::size_t most_shared_memory();

/// Whether the current device can begin a kernel before the one in front of it has ended: from Hopper on.
bool has_programmatic_launch();

/// Launches a kernel that may begin while the one before it in the stream still runs: it calls
/// wait_for_predecessor() before it reads what others have written. On GPUs before Hopper it begins after it.
template <class... Parameters, class... Arguments>
void launch_chained(cudaStream_t stream, const Grid& grid, void (*kernel)(Parameters...),
                    Arguments&&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = grid.shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = has_programmatic_launch() ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...),
        "launching a kernel");
}

/// Launches a kernel that asks for more shared memory than a block gets unasked.
template <class... Parameters, class... Arguments>
void launch_large(cudaStream_t stream, const Grid& grid, void (*kernel)(Parameters...),
                  Arguments&&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(grid.shared)),
        "asking for shared memory");
  // Kernels between which an SM would divide its memory anew cannot be on it together.
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "asking for shared memory");
  launch_chained(stream, grid, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace calla::cuda
