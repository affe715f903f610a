#include "checkpoint/files.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "support/support.h"

namespace calla::test {
namespace {
std::uint64_t bytes_of(const TensorSpec& tensor) {
  std::uint64_t size = size_of(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) size *= static_cast<std::uint64_t>(extent);
  return size;
}
}  // namespace

std::string safetensors(std::string_view header, std::string_view data) {
  std::string file;
  for (unsigned i = 0; i < 8; ++i) file.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xFFU));
  return file.append(header).append(data);
}

std::string header_of(const std::vector<TensorSpec>& tensors) {
  Json header = Json::object();
  std::uint64_t begin = 0;
  for (const TensorSpec& tensor : tensors) {
    const std::uint64_t end = begin + bytes_of(tensor);
    header[tensor.name] = {
        {"dtype", name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  return header.dump();
}

std::uint64_t data_bytes(const std::vector<TensorSpec>& tensors) {
  std::uint64_t total = 0;
  for (const TensorSpec& tensor : tensors) total += bytes_of(tensor);
  return total;
}

void write_zeros(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors) {
  const std::string head = safetensors(header_of(tensors), "");
  write_file(path, head);
  std::filesystem::resize_file(path, head.size() + data_bytes(tensors));
}

::testing::AssertionResult tells(std::string_view message, std::initializer_list<std::string_view> parts) {
  if (message.find('\n') != std::string_view::npos)
    return ::testing::AssertionFailure() << "several lines: " << message;
  for (const std::string_view part : parts) {
    if (message.find(part) == std::string_view::npos) {
      return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << message;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace calla::test
