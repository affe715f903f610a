#include "text/byte_level.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace calla {
namespace {
constexpr std::int16_t no_byte = -1;

// The alphabet ends at U+0143: 256 characters, of which 188 are the printable bytes of Latin-1 themselves and
// the other 68 follow U+00FF in the order of their bytes.
constexpr std::size_t alphabet_end = 0x100 + 68;

constexpr bool is_printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<std::int16_t, alphabet_end> make_byte_of_character() {
  std::array<std::int16_t, alphabet_end> byte_of{};
  byte_of.fill(no_byte);
  std::size_t next = 0x100;
  for (int byte = 0; byte < 0x100; ++byte) {
    byte_of[is_printable(byte) ? static_cast<std::size_t>(byte) : next++] = static_cast<std::int16_t>(byte);
  }
  return byte_of;
}

constexpr auto byte_of_character = make_byte_of_character();
}  // namespace

std::optional<std::string> bytes_from_byte_level(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size(); ++i) {
    std::size_t character = static_cast<unsigned char>(token[i]);
    if (character >= 0x80) {
      // The alphabet lies below U+0800, so a longer sequence is outside it.
      if ((character & 0xE0) != 0xC0 || i + 1 == token.size()) return std::nullopt;
      character = (character & 0x1F) << 6 | (static_cast<unsigned char>(token[++i]) & 0x3F);
    }
    if (character >= alphabet_end || byte_of_character[character] == no_byte) return std::nullopt;
    bytes.push_back(static_cast<char>(byte_of_character[character]));
  }
  return bytes;
}

}  // namespace calla
