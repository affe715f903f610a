// UTF-8: checking, mending, and putting together what tokens have split.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace calla {

/// The offset of the first ill-formed sequence, or text.size() when the whole text is well-formed.
std::size_t first_invalid_utf8(std::string_view text);

/// The text with every maximal ill-formed part replaced by U+FFFD (Unicode 15, section 3.9, "best practice").
std::string mend_utf8(std::string_view text);

/// Gathers bytes and gives out whole code points only. Joined, the pieces equal mend_utf8 of all bytes.
class Utf8Assembler {
 public:
  /// Takes the next bytes; returns all code points that are complete.
  std::string push(std::string_view bytes);
  /// Ends the text: an incomplete code point becomes U+FFFD.
  std::string finish();

 private:
  std::string pending_;  // at most the first 3 bytes of a code point
};

}  // namespace calla
