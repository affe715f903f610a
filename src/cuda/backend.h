// The CUDA backend: one NVIDIA GPU, weights in tiles, steps as graphs.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "model/backend.h"
#include "model/shape.h"
#include "model/weights.h"

namespace calla::cuda {

/// The GPU to run on, or why there is none that can be used.
struct Device {
  std::string name = {};        // "NVIDIA H200"; empty where there is none
  std::string reason = {};      // where there is none: one line for people
  std::uint64_t memory = 0;     // bytes
  std::uint64_t available = 0;  // bytes that programs can still get
};
Device find_device();

/// What make_backend will allocate in the GPU's memory, in bytes.
MemoryPlan plan(const Shape& shape, int slots, int context, const SnapshotMemory& snapshots = {});

/// Called with bytes done and bytes in all.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// The backend for a shape of model/shape.h, or for its first layers. Snapshots beyond `snapshots.device`
/// bytes move to the host's memory, as far as there is room. Throws Error where find_device() finds none,
/// when memory is refused or the disk fails.
std::unique_ptr<Backend> make_backend(const Shape& shape, const Weights& weights, int slots, int context,
                                      const SnapshotMemory& snapshots, const LoadProgress& progress);

}  // namespace calla::cuda
