#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/fault_list.h"

namespace calla {
namespace {
constexpr std::uint64_t header_limit = 100'000'000;  // the format's own
constexpr std::size_t length_bytes = 8;
constexpr std::string_view download_again = "download it again";
constexpr std::uint64_t largest_extent = std::numeric_limits<std::int64_t>::max();

struct DTypeFacts {
  std::string_view name;
  std::size_t size;
};
// In the order of the enumeration.
constexpr std::array<DTypeFacts, 15> dtypes{{{"BOOL", 1},
                                             {"U8", 1},
                                             {"I8", 1},
                                             {"U16", 2},
                                             {"I16", 2},
                                             {"U32", 4},
                                             {"I32", 4},
                                             {"U64", 8},
                                             {"I64", 8},
                                             {"F8_E4M3", 1},
                                             {"F8_E5M2", 1},
                                             {"F16", 2},
                                             {"BF16", 2},
                                             {"F32", 4},
                                             {"F64", 8}}};

std::optional<DType> dtype_named(std::string_view name) {
  const auto* const found =
      std::find_if(dtypes.begin(), dtypes.end(), [&](const auto& d) { return d.name == name; });
  if (found == dtypes.end()) return std::nullopt;
  return static_cast<DType>(found - dtypes.begin());
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// What stands in place of a safetensors file when a download went wrong or another file has its name.
void check_kind(std::string_view file, std::string_view where) {
  if (file.empty()) throw Error(where, "is empty", download_again);
  if (file.starts_with("version https://git-lfs")) {
    throw Error(where, "is a git-lfs pointer, not the weights themselves",
                "run `git lfs pull` in its directory");
  }
  if (file.starts_with("GGUF")) throw Error(where, "is a GGUF file", wanted_checkpoint);
  if (file.size() < length_bytes) {
    throw Error(where, fmt::format("is cut off: it has {} bytes", file.size()), download_again);
  }
}

[[noreturn]] void cut_off(std::string_view where, std::uint64_t promised, std::uint64_t present) {
  throw Error(where,
              fmt::format("is cut off: the header promises {} bytes, the file has {} ({} are missing)",
                          promised, present, promised - present),
              download_again);
}

std::string_view header_text(std::span<const std::byte> file, std::string_view where) {
  check_kind(as_text(file), where);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), length_bytes);
  if (length > header_limit) {
    throw Error(where, fmt::format("is not a safetensors file: its header would have {} bytes", length),
                download_again);
  }
  if (length > file.size() - length_bytes) cut_off(where, length_bytes + length, file.size());
  const std::string_view text = as_text(file.subspan(length_bytes, length));
  if (!text.starts_with('{'))
    throw Error(where, "is not a safetensors file: it has no JSON header", download_again);
  return text;
}

/// One tensor as the header describes it; begin and end count from the end of the header.
struct Placed {
  std::string_view name;
  Tensor tensor;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Reads one tensor's entry of the header.
class EntryReader {
 public:
  EntryReader(std::string_view where, std::string_view name, const nlohmann::json& entry)
      : where_(where), name_(name), entry_(entry) {}

  Placed read() const {
    if (!entry_.is_object()) fail("is not described by an object");
    for (const auto& [key, value] : entry_.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets")
        fail("has an unknown field " + quote(key));
    }
    Placed placed{.name = name_, .tensor = {.dtype = dtype(), .shape = {}, .bytes = {}}};
    for (const std::uint64_t extent : extents("shape"))
      placed.tensor.shape.push_back(static_cast<std::int64_t>(extent));
    const auto offsets = extents("data_offsets");
    if (offsets.size() != 2) fail(fmt::format("has {} data_offsets, not 2", offsets.size()));
    placed.begin = offsets[0];
    placed.end = offsets[1];
    if (placed.begin > placed.end)
      fail(fmt::format("ends at {} before it begins at {}", placed.end, placed.begin));
    const std::uint64_t needed = size(placed.tensor);
    if (placed.end - placed.begin != needed) {
      fail(fmt::format("is {}, which takes {} bytes, but its data_offsets span {}",
                       describe(placed.tensor.dtype, placed.tensor.shape), needed,
                       placed.end - placed.begin));
    }
    return placed;
  }

 private:
  [[noreturn]] void fail(std::string_view problem) const {
    throw Error(where_, fmt::format("tensor {} {}", quote(name_), problem), download_again);
  }

  const nlohmann::json& field(std::string_view key) const {
    const auto found = entry_.find(key);
    if (found == entry_.end()) fail(fmt::format("has no {}", key));
    return *found;
  }

  DType dtype() const {
    const nlohmann::json& value = field("dtype");
    if (!value.is_string()) fail("has a dtype that is no string");
    const auto& spelled = value.get_ref<const std::string&>();
    const std::optional<DType> known = dtype_named(spelled);
    if (!known) fail("has the unknown dtype " + quote(spelled));
    return *known;
  }

  std::vector<std::uint64_t> extents(std::string_view key) const {
    const nlohmann::json& list = field(key);
    if (!list.is_array()) fail(fmt::format("has a {} that is no list", key));
    std::vector<std::uint64_t> values;
    for (const nlohmann::json& value : list) {
      if (!value.is_number_unsigned() || value.get<std::uint64_t>() > largest_extent) {
        fail(fmt::format("has a {} that is no list of whole numbers", key));
      }
      values.push_back(value.get<std::uint64_t>());
    }
    return values;
  }

  std::uint64_t size(const Tensor& tensor) const {
    std::uint64_t product = size_of(tensor.dtype);
    // An extent of 0 makes the tensor empty, however large the others are.
    if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return 0;
    for (const std::int64_t extent : tensor.shape) {
      if (static_cast<std::uint64_t>(extent) > largest_extent / product)
        fail("has a shape too large for any memory");
      product *= static_cast<std::uint64_t>(extent);
    }
    return product;
  }

  std::string_view where_;
  std::string_view name_;
  const nlohmann::json& entry_;
};

void check_metadata(const nlohmann::json& metadata, std::string_view where) {
  const bool strings =
      metadata.is_object() &&
      std::all_of(metadata.begin(), metadata.end(), [](const auto& value) { return value.is_string(); });
  if (!strings) throw Error(where, "has a __metadata__ that is no object of strings", download_again);
}

/// The tensors must tile the bytes after the header: sorted by place, each begins where the last one ends.
void check_tiling(std::vector<Placed>& tensors, std::uint64_t header_end, std::uint64_t file_size,
                  std::string_view where) {
  std::sort(tensors.begin(), tensors.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::uint64_t end = 0;
  const Placed* last = nullptr;
  for (const Placed& tensor : tensors) {
    if (tensor.begin < end) {
      throw Error(where, fmt::format("tensors {} and {} overlap", quote(last->name), quote(tensor.name)),
                  download_again);
    }
    if (tensor.begin > end) {
      throw Error(where,
                  fmt::format("{} bytes before tensor {} belong to no tensor", tensor.begin - end,
                              quote(tensor.name)),
                  download_again);
    }
    end = tensor.end;
    last = &tensor;
  }
  const std::uint64_t available = file_size - header_end;
  if (end > available) cut_off(where, header_end + end, file_size);
  if (end < available) {
    throw Error(where, fmt::format("{} bytes after the last tensor belong to no tensor", available - end),
                download_again);
  }
}
}  // namespace

std::size_t size_of(DType dtype) { return dtypes.at(static_cast<std::size_t>(dtype)).size; }
std::string_view name(DType dtype) { return dtypes.at(static_cast<std::size_t>(dtype)).name; }

std::string describe(DType dtype, std::span<const std::int64_t> shape) {
  return fmt::format("{} [{}]", name(dtype), fmt::join(shape, ", "));
}

TensorMap parse_safetensors(std::span<const std::byte> file, std::string_view where) {
  const std::string_view text = header_text(file, where);
  const std::uint64_t header_end = length_bytes + text.size();
  const nlohmann::json header = parse_json_unique(text, fmt::format("{}: the header", where));

  std::vector<Placed> placed;
  for (auto it = header.begin(); it != header.end(); ++it) {
    if (it.key() == "__metadata__") {
      check_metadata(it.value(), where);
    } else {
      placed.push_back(EntryReader(where, it.key(), it.value()).read());
    }
  }
  check_tiling(placed, header_end, file.size(), where);

  TensorMap tensors;
  for (Placed& entry : placed) {
    entry.tensor.bytes = file.subspan(header_end + entry.begin, entry.end - entry.begin);
    tensors.emplace(entry.name, std::move(entry.tensor));
  }
  return tensors;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(path), tensors_(parse_safetensors(file_.bytes(), path.string())) {}

}  // namespace calla
