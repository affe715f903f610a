// safetensors files: a JSON header of named tensors, then their bytes. A checkpoint is one such file, or several with an
// index that says which tensor lies in which.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"

namespace calla {

enum class DType { boolean, u8, i8, u16, i16, u32, i32, u64, i64, f8_e4m3, f8_e5m2, f16, bf16, f32, f64 };
std::size_t size_of(DType dtype);
std::string_view name(DType dtype);  // as the file spells it: "BF16"

struct Tensor {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // of the mapped file, at any alignment
};

/// One mapped file. Opening checks every field of the header: offsets inside the file, no overlap and no gap, size = product
/// of the shape times the size of the type, no name twice. Throws Error that names the file and the tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

/// The tensors described by a header's bytes within a file of `file_size` bytes; the views start at `file`. Split from
/// SafetensorsFile so that a fuzzer can reach it. `where` names the file in messages.
std::map<std::string, Tensor, std::less<>> parse_safetensors(std::span<const std::byte> file, std::string_view where);

/// All tensors of a checkpoint directory: model.safetensors.index.json with the shards it names, or model.safetensors.
class TensorStore {
 public:
  /// Throws Error for a missing or truncated shard, a tensor in two shards, or an index and shards that disagree.
  static TensorStore open(const std::filesystem::path& directory);

  struct Entry {
    const Tensor* tensor;
    const SafetensorsFile* file;
  };
  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  std::uint64_t bytes() const;  // of all tensors

 private:
  std::vector<std::unique_ptr<const SafetensorsFile>> files_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace calla
