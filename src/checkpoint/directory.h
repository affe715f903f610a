// What a path holds, before any file of it is read.
#pragma once
#include <filesystem>

namespace calla {

/// Throws Error, in plain words, unless `path` is a directory with a config.json: no such directory, a file
/// instead, a GGUF file or a directory of them, a directory of something else.
void check_model_directory(const std::filesystem::path& path);

}  // namespace calla
