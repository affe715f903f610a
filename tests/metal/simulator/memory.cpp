#include <algorithm>
#include <cstring>
#include <new>

#include <sys/mman.h>

#include "metal/simulator/memory.h"
#include "metal/simulator/threadgroup.h"

namespace calla::metal::simulation {
namespace {

constexpr std::size_t reserved = std::size_t{1} << 40;
constexpr std::size_t page = 16384;
constexpr std::size_t alignment = 256;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Memory::Memory()
    : base_(static_cast<std::byte*>(
          mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  if (base_ == MAP_FAILED) throw std::bad_alloc();
}

Memory::~Memory() { munmap(base_, reserved); }

std::span<std::byte> Memory::allocate(std::size_t bytes) {
  const std::size_t whole = round_up(std::max<std::size_t>(bytes, 1), page);
  std::byte* const first = base_ + used_ + page;
  used_ += whole + 2 * page;
  if (used_ > reserved || mprotect(first, whole, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  const std::span<std::byte> result(first + (whole - round_up(bytes, alignment)), bytes);
  for (std::size_t at = 0; at + sizeof(poison) <= bytes; at += sizeof(poison)) {
    std::memcpy(result.data() + at, &poison, sizeof(poison));
  }
  return result;
}

void Memory::release(std::span<std::byte> bytes) {
  const auto address = static_cast<std::size_t>(bytes.data() - base_);
  const std::size_t first = address / page * page;
  const std::size_t end = round_up(address + bytes.size(), page);
  mmap(base_ + first, end - first, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace calla::metal::simulation
