// A hash of a sequence of tokens, one after another. It names things; whether two sequences are the same is
// always seen from their tokens.
#pragma once
#include <cstdint>

#include "base/token.h"

namespace calla {

class TokenHash {
 public:
  void add(Token token) {
    // One round of MurmurHash3's 64-bit finaliser over what is there and the token.
    value_ ^= static_cast<std::uint64_t>(static_cast<std::uint32_t>(token)) + 0x9e3779b97f4a7c15U;
    value_ = (value_ ^ value_ >> 33U) * 0xff51afd7ed558ccdU;
    value_ = (value_ ^ value_ >> 33U) * 0xc4ceb9fe1a85ec53U;
    value_ ^= value_ >> 33U;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0x243f6a8885a308d3U;
};

}  // namespace calla
