// The reference forward pass behind the backend interface: correct on every machine, not fast.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "model/backend.h"
#include "model/shape.h"
#include "model/weights.h"

namespace calla::reference {

/// Backend::device() of this backend.
inline constexpr std::string_view device_name = "CPU (reference, float32)";

/// What make_backend will need, in bytes. Weights stay in the mapped file; KV is float32.
MemoryPlan plan(const Shape& shape, std::uint64_t weight_bytes, int slots, int context);

/// The backend for a shape of model/shape.h, or for its first layers.
std::unique_ptr<Backend> make_backend(const Shape& shape, Weights weights, int slots, int context);

}  // namespace calla::reference
