// All tensors of a checkpoint directory, by name.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace calla {

/// The tensors of model.safetensors.index.json and the shards it names, or of model.safetensors alone. The
/// files stay mapped as long as the store lives.
class TensorStore {
 public:
  /// Throws Error for a directory without weights, for a missing, truncated or surplus file, a tensor in two
  /// shards, and for an index and shards that disagree.
  static std::shared_ptr<const TensorStore> open(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  /// In the order of their names.
  const std::vector<std::unique_ptr<const SafetensorsFile>>& files() const { return files_; }
  /// Each points into one of files().
  const std::map<std::string, const Tensor*, std::less<>>& tensors() const { return tensors_; }

 private:
  TensorStore() = default;
  void open_files(const std::vector<std::string>& names);
  void match_index(const std::map<std::string, std::string>& shard_of) const;

  std::filesystem::path directory_;
  std::vector<std::unique_ptr<const SafetensorsFile>> files_;
  std::map<std::string, const Tensor*, std::less<>> tensors_;
};

}  // namespace calla
