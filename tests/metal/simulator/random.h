// Small random numbers for orders of execution: the same for the same seed everywhere.
#pragma once
#include <cstdint>

namespace calla::metal::simulation {

class Random {
 public:
  explicit Random(std::uint64_t seed = 1) : state_(seed) {}
  /// Splits off a stream that depends on this one's seed and a number.
  Random split(std::uint64_t number) const { return Random(mix(state_ ^ mix(number + 0x9e3779b97f4a7c15U))); }

  std::uint32_t next() {
    state_ += 0x9e3779b97f4a7c15U;
    return static_cast<std::uint32_t>(mix(state_) >> 32);
  }
  /// Below the bound.
  std::uint32_t below(std::uint32_t bound) {
    return static_cast<std::uint32_t>((std::uint64_t{next()} * bound) >> 32);
  }

 private:
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }

  std::uint64_t state_;
};

}  // namespace calla::metal::simulation
