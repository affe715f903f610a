// Numbers below 1e-38 as zeros: decayed states drift there, and many processors compute with them a hundred
// times slower.
#pragma once
#include <cstdint>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

namespace calla::cpu {

/// This thread's results and operands below the smallest normal number are zero as long as the object lives.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(_mm_getcsr()) {
    constexpr unsigned results = 0x8000;
    constexpr unsigned operands = 0x0040;
    _mm_setcsr(before_ | results | operands);
  }
  ~FlushDenormals() { _mm_setcsr(before_); }
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    constexpr std::uint64_t flush = std::uint64_t{1} << 24U;
    asm volatile("msr fpcr, %0" : : "r"(before_ | flush));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(before_)); }
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  unsigned before_;
#elif defined(__aarch64__)
  std::uint64_t before_ = 0;
#endif
};

}  // namespace calla::cpu
