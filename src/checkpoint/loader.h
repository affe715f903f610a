// From a directory to typed weights:
//
//   const ModelConfig config = read_config(directory);
//   const auto store = TensorStore::open(directory);
//   const Weights weights = bind_weights(store, config.shape);
//   prefetch(*store, progress);
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "checkpoint/tensor_store.h"
#include "model/weights.h"

namespace calla {

/// Called with bytes done and bytes in all, on the loading thread, a few hundred times at most.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Matches every tensor of the store against the shape: each one is consumed or skipped on purpose
/// (`vision_tower.`); `mtp.` is consumed when any of it is present, and then must be whole. Unknown, missing
/// and mis-shaped tensors are named, eight at most, in one Error. Reads no tensor data but the small vectors.
/// The result keeps the files mapped.
Weights bind_weights(std::shared_ptr<const TensorStore> store, const Shape& shape);

/// Brings the weights' pages into memory, in file order, without the vision tower, so that the first answer
/// does not wait for the disk. Reports (0, total) first and (total, total) last. Throws Error when the disk
/// fails.
void prefetch(const TensorStore& store, const LoadProgress& progress);

/// The pages of the store's files.
std::shared_ptr<const WeightPages> weight_pages(std::shared_ptr<const TensorStore> store);

}  // namespace calla
