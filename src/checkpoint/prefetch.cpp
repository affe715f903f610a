#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/loader.h"
#include "checkpoint/tensor_table.h"

namespace calla {
namespace {
struct Range {
  std::span<const std::byte> bytes;
  const SafetensorsFile* file;
};

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

/// madvise on the whole pages that hold the bytes.
int advise(std::span<const std::byte> bytes, int advice) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t into_page = reinterpret_cast<std::uintptr_t>(bytes.data()) % page;
  // madvise changes nothing of the mapping's content; its parameter is not const because other advice would.
  auto* start =
      const_cast<std::byte*>(bytes.data()) - into_page;  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  return ::madvise(start, bytes.size() + into_page, advice);
}

void touch_pages(std::span<const std::byte> bytes) {
  constexpr std::size_t smallest_page = 4096;
  for (std::size_t i = 0; i < bytes.size(); i += smallest_page) {
    static_cast<void>(*const_cast<const volatile std::byte*>(&bytes[i]));
  }
  static_cast<void>(*const_cast<const volatile std::byte*>(&bytes.back()));
}

void bring_in(std::span<const std::byte> bytes, const SafetensorsFile& file) {
#ifdef MADV_POPULATE_READ
  if (advise(bytes, MADV_POPULATE_READ) == 0) return;
  // EFAULT is the disk's fault; touching the page would end the process. Kernels before 5.14 answer EINVAL.
  if (errno == EFAULT)
    throw Error(file.path().string(), "cannot be read from disk", "check the disk, copy the file again");
#else
  static_cast<void>(file);
#endif
  touch_pages(bytes);
}
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
      if (!next.empty()) advise(next, MADV_WILLNEED);
      bring_in(now, *range.file);
      done += now.size();
      report(done);
    }
  }
}

}  // namespace calla
