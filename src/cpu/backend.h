// The CPU backend: weights packed for the widest instructions that the machine has, all cores, tokens in a
// batch.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "cpu/weights.h"
#include "model/backend.h"
#include "model/shape.h"
#include "model/weights.h"

namespace calla::cpu {

/// Backend::device() of this backend on this machine: "CPU (AVX2, 2 threads)".
std::string device_name(int threads);

/// What make_backend will need, in bytes.
MemoryPlan plan(const Shape& shape, int slots, int context);

/// The backend for a shape of model/shape.h, or for its first layers. Packs the weights with all threads.
/// Throws Error when memory is refused or the disk fails.
std::unique_ptr<Backend> make_backend(const Shape& shape, Weights weights, int slots, int context,
                                      int threads, const PackProgress& progress);

}  // namespace calla::cpu
