// A synthetic checkpoint as a directory, in the form that MLX writes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>

#include "checkpoint/loader.h"
#include "model/shape.h"

namespace calla {

/// Writes the weights of synthetic_weights(shape) into `directory`: config.json, shards of at most 5 GB and
/// their index, and the tokenizer, chat template and generation_config.json of the checkpoint in `tokenizer`,
/// whose end tokens the configuration names.
///
/// `progress` may throw to stop the work. Throws Error when the directory exists and is not empty, when the
/// disk has not enough room (with both numbers), and when writing fails; what was written is removed then.
void write_synthetic(const Shape& shape, const std::filesystem::path& tokenizer,
                     const std::filesystem::path& directory, const LoadProgress& progress);

}  // namespace calla
