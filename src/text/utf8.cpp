#include "text/utf8.h"

#include <utility>

namespace calla {
namespace {
constexpr std::string_view replacement = "\xEF\xBF\xBD";

struct Sequence {
  std::size_t length;  // bytes to take: the sequence, or its longest well-formed beginning, at least 1
  bool complete;       // a whole code point
  bool truncated;      // well-formed as far as the text goes
};

// The well-formed sequences of Unicode 15, table 3-7: only the second byte's range depends on the first.
Sequence sequence_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, false};
  const std::size_t wanted = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < wanted; ++i) {
    if (at + i == text.size()) return {i, false, true};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) return {i, false, false};
  }
  return {wanted, true, false};
}

/// Appends the mended text; stops before a sequence that is cut off by the end and returns its offset.
std::size_t mend(std::string_view text, std::string& out) {
  std::size_t copied = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const Sequence next = sequence_at(text, at);
    if (next.truncated) break;
    if (!next.complete) {
      out.append(text, copied, at - copied).append(replacement);
      copied = at + next.length;
    }
    at += next.length;
  }
  out.append(text, copied, at - copied);
  return at;
}
}  // namespace

std::size_t first_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Sequence next = sequence_at(text, at);
    if (!next.complete) return at;
    at += next.length;
  }
  return at;
}

std::string mend_utf8(std::string_view text) {
  std::string mended;
  mended.reserve(text.size());
  if (mend(text, mended) < text.size()) mended.append(replacement);
  return mended;
}

std::string Utf8Assembler::push(std::string_view bytes) {
  pending_.append(bytes);
  std::string whole;
  pending_.erase(0, mend(pending_, whole));
  return whole;
}

std::string Utf8Assembler::finish() { return mend_utf8(std::exchange(pending_, {})); }

}  // namespace calla
