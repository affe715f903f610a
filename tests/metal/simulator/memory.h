// The simulated device's memory: one reserved range of addresses, in which buffers lie apart from each other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

namespace calla::metal::simulation {

/// What words hold that nothing wrote yet: as a float it is not a number.
inline constexpr std::uint32_t poison = 0x7fb5d3a9U;
void fill_with_poison(std::span<std::byte> bytes);

/// A buffer's memory, and what the watch knows of it.
struct Region {
  std::byte* begin = nullptr;
  std::size_t size = 0;
  bool mapped = false;  // memory that was there before

  std::uint64_t bound_in = 0;     // number of the last dispatch that it was bound in,
  std::byte* bound_at = nullptr;  // the lowest address it was bound at,
  bool may_write = false;         // and whether the kernel may write it
  bool watched = false;           // it may be written in this level or in the ones beside it
};

/// Anonymous memory that takes room only where it is touched.
class Reserved {
 public:
  explicit Reserved(std::size_t bytes, bool accessible);
  ~Reserved();
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  Reserved(Reserved&&) = delete;
  Reserved& operator=(Reserved&&) = delete;
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  std::byte* data_;
  std::size_t size_;
};

class Memory {
 public:
  static constexpr std::size_t reserved = std::size_t{1} << 36;
  static constexpr std::size_t page = 16384;
  static constexpr std::size_t cell_bytes = 16;  // of the watch, a word

  Memory();

  /// Bytes that hold the poison, behind and before pages that must not be touched; as near to the last of
  /// these as their alignment of 256 lets them be. The region lives as long as the memory.
  Region* allocate(std::size_t bytes);
  /// Memory that was there before.
  Region* map(std::span<std::byte> bytes);
  /// Gives a region's memory back to the system. Its addresses are not used again.
  void release(Region* region);

  std::uintptr_t begin() const { return reinterpret_cast<std::uintptr_t>(range_.data()); }
  /// The region whose pages an address within the reserved range lies on, or null.
  Region* region_at(std::uintptr_t address) const { return of_page()[(address - begin()) / page]; }
  const std::deque<Region>& regions() const { return regions_; }
  /// The watch's cells, one for each word of the reserved range.
  std::byte* cells() const { return cells_.data(); }
  void clear_cells();

 private:
  Region** of_page() const { return reinterpret_cast<Region**>(of_page_.data()); }

  Reserved range_;
  Reserved of_page_;
  Reserved cells_;
  std::size_t used_ = 0;
  std::deque<Region> regions_;
};

}  // namespace calla::metal::simulation
