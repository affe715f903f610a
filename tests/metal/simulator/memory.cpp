#include "metal/simulator/memory.h"

#include <algorithm>
#include <cstring>
#include <new>

#include <sys/mman.h>

namespace calla::metal::simulation {
namespace {

constexpr std::size_t alignment = 256;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

void fill_with_poison(std::span<std::byte> bytes) {
  std::size_t at = 0;
  for (; at + sizeof(poison) <= bytes.size(); at += sizeof(poison)) {
    std::memcpy(bytes.data() + at, &poison, sizeof(poison));
  }
  std::memcpy(bytes.data() + at, &poison, bytes.size() - at);
}

Reserved::Reserved(std::size_t bytes, bool accessible)
    : data_(static_cast<std::byte*>(mmap(nullptr, bytes, accessible ? PROT_READ | PROT_WRITE : PROT_NONE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
      size_(bytes) {
  if (data_ == MAP_FAILED) throw std::bad_alloc();
}

Reserved::~Reserved() { munmap(data_, size_); }

Memory::Memory()
    : range_(reserved, false),
      of_page_(reserved / page * sizeof(Region*), true),
      cells_(reserved / sizeof(poison) * cell_bytes, true) {}

Region* Memory::allocate(std::size_t bytes) {
  const std::size_t whole = round_up(std::max<std::size_t>(bytes, 1), page);
  std::byte* const first = range_.data() + used_ + page;
  if (whole + 2 * page > reserved - used_ || mprotect(first, whole, PROT_READ | PROT_WRITE) != 0)
    throw std::bad_alloc();
  Region& region = regions_.emplace_back();
  region.begin = first + (whole - round_up(bytes, alignment));
  region.size = bytes;
  fill_with_poison({region.begin, bytes});
  std::fill_n(of_page() + (used_ + page) / page, whole / page, &region);
  used_ += whole + 2 * page;
  return &region;
}

Region* Memory::map(std::span<std::byte> bytes) {
  Region& region = regions_.emplace_back();
  region.begin = bytes.data();
  region.size = bytes.size();
  region.mapped = true;
  return &region;
}

void Memory::release(Region* region) {
  if (!region->mapped) {
    const auto address = static_cast<std::size_t>(region->begin - range_.data());
    const std::size_t first = address / page * page;
    const std::size_t end = round_up(address + std::max<std::size_t>(region->size, 1), page);
    madvise(cells_.data() + first / sizeof(poison) * cell_bytes, (end - first) / sizeof(poison) * cell_bytes,
            MADV_DONTNEED);
    mmap(range_.data() + first, end - first, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
  region->size = 0;
}

void Memory::clear_cells() { madvise(cells_.data(), cells_.size(), MADV_DONTNEED); }

}  // namespace calla::metal::simulation
