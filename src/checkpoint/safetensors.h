// A safetensors file: the header's length (u64, little-endian), a JSON header of named tensors, then their
// bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"

namespace calla {

enum class DType { boolean, u8, i8, u16, i16, u32, i32, u64, i64, f8_e4m3, f8_e5m2, f16, bf16, f32, f64 };
std::size_t size_of(DType dtype);
std::string_view name(DType dtype);  // as the file spells it: "BF16"

/// "BF16 [2048, 4]", for messages.
std::string describe(DType dtype, std::span<const std::int64_t> shape);

struct Tensor {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // of the mapped file, at any alignment
};

using TensorMap = std::map<std::string, Tensor, std::less<>>;

/// The tensors of a file's bytes; they are views of `file`. Every field of the header is checked: offsets
/// inside the file, no overlap and no gap, size = product of the shape times the size of the type, no name
/// twice. Throws Error that names the file, as `where`, and the tensor.
TensorMap parse_safetensors(std::span<const std::byte> file, std::string_view where);

/// One mapped file, checked as parse_safetensors does.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const TensorMap& tensors() const { return tensors_; }
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  /// Whether the bytes are some of this file's.
  bool contains(std::span<const std::byte> bytes) const {
    const auto file = file_.bytes();
    return bytes.data() >= file.data() && bytes.data() < file.data() + file.size();
  }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  TensorMap tensors_;
};

}  // namespace calla
