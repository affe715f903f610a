#include "cpu/memory.h"

#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

#include "base/error.h"
#include "model/memory_plan.h"

namespace calla::cpu {

namespace {
constexpr std::size_t large_page = std::size_t{2} << 20U;
}

Region::Region(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  mapped_ = bytes + large_page;
  mapping_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    throw Error("memory", fmt::format("{} were refused by the system", format_bytes(bytes)),
                "close other programs or choose a smaller --context");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  data_ = static_cast<std::byte*>(mapping_) + (large_page - address % large_page) % large_page;
#ifdef MADV_HUGEPAGE
  // Before the first touch; small regions are not worth a page of 2 MiB. A refusal costs speed only.
  if (bytes >= large_page / 2) ::madvise(data_, bytes, MADV_HUGEPAGE);
#endif
}

Region::~Region() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
}

Region::Region(Region&& other) noexcept { *this = std::move(other); }

Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

}  // namespace calla::cpu
