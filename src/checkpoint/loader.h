// From a directory to typed weights.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>

#include "checkpoint/safetensors.h"
#include "model/weights.h"

namespace calla {

/// Called with bytes done and bytes in all, on the loading thread, a few hundred times at most.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Matches every tensor of the store against the shape: each one is consumed or skipped on purpose (`vision_tower.`);
/// `mtp.` is consumed when any of it is present, and then must be whole. Unknown, missing and mis-shaped tensors are named,
/// eight at most, in one Error. Reads no tensor data but the small vectors. The result keeps the files mapped.
Weights bind_weights(TensorStore store, const Shape& shape);

/// Brings the weights' pages into memory, in file order, so that the first answer does not wait for the disk.
void prefetch(const Weights& weights, const LoadProgress& progress);

}  // namespace calla
