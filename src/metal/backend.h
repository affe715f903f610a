// The Metal backend: one GPU of Apple's, or what stands in for one, weights where they are mapped, a pass of
// few dispatches a token.
#pragma once
#include <cstdint>
#include <memory>

#include "metal/device.h"
#include "metal/weights.h"
#include "model/backend.h"
#include "model/shape.h"
#include "model/weights.h"

namespace calla::metal {

/// What make_backend will need, in bytes.
MemoryPlan plan(const Shape& shape, std::uint64_t weight_bytes, int slots, int context);

/// What Backend::prefill_chunk() may be, and is where nothing smaller is asked for.
inline constexpr int largest_chunk = 1024;

/// The backend for a shape of model/shape.h, or for its first layers, on a device whose kernels are compiled
/// for the shape and that require_simd_groups() has nothing against (self_test.h). Throws Error when memory
/// is refused or the disk fails. `chunk`: a multiple of 32, at most
/// largest_chunk.
std::unique_ptr<Backend> make_backend(std::unique_ptr<Device> device, const Shape& shape,
                                      const Weights& weights, int slots, int context,
                                      const LoadProgress& progress, int chunk = largest_chunk);

}  // namespace calla::metal
