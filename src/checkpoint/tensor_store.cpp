#include "checkpoint/tensor_store.h"

#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/directory.h"
#include "checkpoint/fault_list.h"

namespace calla {
namespace fs = std::filesystem;

namespace {
constexpr std::string_view index_name = "model.safetensors.index.json";
constexpr std::string_view single_name = "model.safetensors";
constexpr std::string_view download_both = "download the index and the shards again, from one place";

using ShardOf = std::map<std::string, std::string>;  // tensor -> file name

/// A shard must lie beside the index: a name with a path in it could reach any file of the machine.
bool is_plain_file_name(std::string_view name) {
  return name.ends_with(".safetensors") &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

ShardOf read_index(const fs::path& path) {
  const std::string where = path.string();
  const nlohmann::json index = parse_json_unique(read_text_file(path), where);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object())
    throw Error(where, "has no weight_map object", "download it again");
  if (map->empty()) throw Error(where, "names no tensor", "download it again");
  ShardOf shard_of;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      throw Error(where,
                  fmt::format("puts tensor {} in {}, which is no plain name of a .safetensors file",
                              quote(tensor), brief(Json(shard))),
                  "download it again");
    }
    shard_of.emplace(tensor, shard.get<std::string>());
  }
  return shard_of;
}

std::set<std::string> safetensors_files(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") names.insert(entry.path().filename().string());
  }
  return names;
}

void check_present(const fs::path& index, const std::set<std::string>& named,
                   const std::set<std::string>& present) {
  FaultList missing;
  FaultList surplus;
  for (const std::string& name : named) {
    if (!present.contains(name)) missing.add(quote(name));
  }
  for (const std::string& name : present) {
    if (!named.contains(name)) surplus.add(quote(name));
  }
  missing.raise(index.string(),
                "names files that are not there:", "download the missing files into its directory");
  surplus.raise(index.string(),
                "does not name every .safetensors file beside it:", "move the others out of the directory");
}

void check_single(const fs::path& directory, const std::set<std::string>& present) {
  if (present.empty()) {
    throw Error(directory.string(),
                "holds no weights: no model.safetensors and no model.safetensors.index.json",
                wanted_checkpoint);
  }
  if (!present.contains(std::string(single_name))) {
    throw Error(directory.string(),
                fmt::format("holds {} but neither model.safetensors nor model.safetensors.index.json",
                            quote(*present.begin())),
                "download model.safetensors.index.json too");
  }
  if (present.size() > 1) {
    FaultList surplus;
    for (const std::string& name : present) {
      if (name != single_name) surplus.add(quote(name));
    }
    surplus.raise(directory.string(), "holds files beside model.safetensors that no index names:",
                  "move them out of the directory");
  }
}
}  // namespace

std::shared_ptr<const TensorStore> TensorStore::open(const fs::path& directory) {
  check_model_directory(directory);
  const std::set<std::string> present = safetensors_files(directory);
  const fs::path index = directory / index_name;

  TensorStore store;
  store.directory_ = directory;
  std::error_code fault;
  if (fs::exists(index, fault)) {
    const ShardOf shard_of = read_index(index);
    std::set<std::string> named;
    for (const auto& [tensor, shard] : shard_of) named.insert(shard);
    check_present(index, named, present);
    store.open_files({named.begin(), named.end()});
    store.match_index(shard_of);
  } else {
    check_single(directory, present);
    store.open_files({std::string(single_name)});
  }
  return std::make_shared<const TensorStore>(std::move(store));
}

void TensorStore::open_files(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    files_.push_back(std::make_unique<const SafetensorsFile>(directory_ / name));
    for (const auto& [tensor_name, tensor] : files_.back()->tensors()) tensors_.emplace(tensor_name, &tensor);
  }
}

void TensorStore::match_index(const ShardOf& shard_of) const {
  FaultList faults;
  std::map<std::string, const SafetensorsFile*> shards;
  for (const auto& file : files_) {
    const std::string shard = file->path().filename().string();
    shards.emplace(shard, file.get());
    for (const auto& [name, tensor] : file->tensors()) {
      const auto mapped = shard_of.find(name);
      if (mapped == shard_of.end()) {
        faults.add(fmt::format("{} of {} is not in the index", quote(name), shard));
      } else if (mapped->second != shard) {
        faults.add(fmt::format("{} lies in {}, the index says {}", quote(name), shard, mapped->second));
      }
    }
  }
  for (const auto& [name, shard] : shard_of) {
    if (!shards.at(shard)->tensors().contains(name))
      faults.add(fmt::format("{} is not in {}", quote(name), shard));
  }
  faults.raise((directory_ / index_name).string(), "and the shards disagree:", download_both);
}

}  // namespace calla
