#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "checkpoint/loader.h"
#include "checkpoint/tensor_table.h"

namespace calla {
namespace {
struct Range {
  std::span<const std::byte> bytes;
  const SafetensorsFile* file;
};

Error unreadable(const SafetensorsFile& file) {
  return {file.path().string(), "cannot be read from disk", "check the disk, copy the file again"};
}

/// The ranges of the store that the engine reads, in file order; neighbouring tensors are one range.
std::vector<Range> used_ranges(const TensorStore& store) {
  std::vector<Range> ranges;
  for (const auto& file : store.files()) {
    std::vector<std::span<const std::byte>> tensors;
    for (const auto& [name, tensor] : file->tensors()) {
      if (!is_skipped(name) && !tensor.bytes.empty()) tensors.push_back(tensor.bytes);
    }
    std::sort(tensors.begin(), tensors.end(),
              [](const auto& a, const auto& b) { return a.data() < b.data(); });
    for (const auto& tensor : tensors) {
      if (!ranges.empty() && ranges.back().file == file.get() &&
          ranges.back().bytes.data() + ranges.back().bytes.size() == tensor.data()) {
        ranges.back().bytes = {ranges.back().bytes.data(), ranges.back().bytes.size() + tensor.size()};
      } else {
        ranges.push_back({tensor, file.get()});
      }
    }
  }
  return ranges;
}

class MappedPages : public WeightPages {
 public:
  explicit MappedPages(std::shared_ptr<const TensorStore> store) : store_(std::move(store)) {}

  std::span<const std::byte> mapping(std::span<const std::byte> bytes) const override {
    const auto& files = store_->files();
    const auto file =
        std::find_if(files.begin(), files.end(), [&](const auto& each) { return each->contains(bytes); });
    return file == files.end() ? std::span<const std::byte>() : (*file)->bytes();
  }
  void read_ahead(std::span<const std::byte> bytes) const override { calla::read_ahead(bytes); }
  void load(std::span<const std::byte> bytes) const override {
    if (bring_in(bytes)) return;
    for (const auto& file : store_->files()) {
      if (file->contains(bytes)) throw unreadable(*file);
    }
  }
  void drop(std::span<const std::byte> bytes) const override { calla::drop(bytes); }

 private:
  std::shared_ptr<const TensorStore> store_;
};
}  // namespace

void prefetch(const TensorStore& store, const LoadProgress& progress) {
  const std::vector<Range> ranges = used_ranges(store);
  std::uint64_t total = 0;
  for (const Range& range : ranges) total += range.bytes.size();
  const auto report = [&](std::uint64_t done) {
    if (progress) progress(done, total);
  };

  constexpr std::uint64_t steps = 256;
  constexpr std::uint64_t smallest_step = std::uint64_t{4} << 20U;
  const std::size_t step = std::max(total / steps, smallest_step);
  std::uint64_t done = 0;
  report(0);
  for (const Range& range : ranges) {
    for (std::span<const std::byte> rest = range.bytes; !rest.empty();) {
      const auto now = rest.first(std::min(step, rest.size()));
      rest = rest.subspan(now.size());
      // The disk works on the next step while this one is mapped.
      const auto next = rest.first(std::min(step, rest.size()));
      if (!next.empty()) read_ahead(next);
      if (!bring_in(now)) throw unreadable(*range.file);
      done += now.size();
      report(done);
    }
  }
}

std::shared_ptr<const WeightPages> weight_pages(std::shared_ptr<const TensorStore> store) {
  return std::make_shared<const MappedPages>(std::move(store));
}

}  // namespace calla
