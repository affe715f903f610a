// The byte strings of a vocabulary: bytes by id, and id by bytes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"

namespace calla {

/// A 64-bit hash of a byte string, in time linear in its length.
std::uint64_t hash_bytes(std::string_view bytes);

class Vocabulary {
 public:
  /// Ids are below this, so that a mistaken id cannot ask for gigabytes. (The model's vocabulary has 248,320
  /// rows.)
  static constexpr Token id_limit = 1 << 20;
  static constexpr Token none = -1;

  /// Makes room for `count` tokens; more cannot be added.
  explicit Vocabulary(std::size_t count);

  /// Adds a token: neither its id, in [0, id_limit), nor its bytes, at least one, may be there already.
  void add(Token id, std::string_view bytes);

  /// The id of a byte string, or none.
  Token find(std::string_view bytes) const { return find(bytes, hash_bytes(bytes)); }
  Token find(std::string_view bytes, std::uint64_t hash) const;
  /// The bytes of an id; empty for any id that is not in use.
  std::string_view bytes(Token id) const;
  /// One more than the largest id in use.
  Token size() const { return static_cast<Token>(spans_.size()); }

 private:
  struct Span {
    std::uint32_t begin = 0;
    std::uint32_t length = 0;
  };
  // Repeats the span of the id, so that a look-up touches two places in memory rather than three.
  struct Slot {
    std::uint32_t tag = 0;  // the upper half of the hash
    Token id = none;
    Span span;
  };
  std::string_view bytes_at(Span span) const {
    return std::string_view(bytes_).substr(span.begin, span.length);
  }

  std::string bytes_;        // of all tokens, one after the other
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // open addressing, at most half full
};

}  // namespace calla
