// The simulated device's memory: one reserved range of addresses, in which buffers lie apart from each other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace calla::metal::simulation {

class Memory {
 public:
  Memory();
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory(Memory&&) = delete;
  Memory& operator=(Memory&&) = delete;

  /// Bytes that hold the poison, behind and before pages that must not be touched; as near to the last of
  /// these as their alignment of 256 lets them be.
  std::span<std::byte> allocate(std::size_t bytes);
  /// Gives memory back to the system. Its addresses are not used again.
  void release(std::span<std::byte> bytes);

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace calla::metal::simulation
