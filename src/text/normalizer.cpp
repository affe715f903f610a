#include "text/normalizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "base/error.h"

namespace calla {
namespace {
// ICU puts marks in order by insertion, which is quadratic in the marks on one letter. Longer runs are sorted
// before ICU sees them; that gives a canonically equivalent text, and so the same NFC.
constexpr std::size_t longest_run_for_icu = 32;

void check(UErrorCode status) {
  if (U_FAILURE(status) != 0)
    throw Error("ICU", std::string("cannot normalise to NFC: ") + u_errorName(status));
}

const icu::Normalizer2& nfc() {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* instance = icu::Normalizer2::getNFCInstance(status);
  check(status);
  return *instance;
}

const icu::Normalizer2& nfd() {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* instance = icu::Normalizer2::getNFDInstance(status);
  check(status);
  return *instance;
}

icu::StringPiece piece_of(std::string_view text) {
  return {text.data(), static_cast<std::int32_t>(text.size())};
}

// Whether every code point is below U+0300, where NFC changes nothing.
bool is_below_marks(std::string_view text) {
  unsigned char highest = 0;
  for (const char byte : text) highest = std::max(highest, static_cast<unsigned char>(byte));
  return highest < 0xCC;
}

// The code point of well-formed UTF-8 that begins at `at`; moves `at` behind it.
UChar32 next_code_point(std::string_view text, std::size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at++]);
  if (lead < 0x80) return lead;
  const int rest = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  UChar32 code_point = lead & (0x3F >> rest);
  for (int i = 0; i < rest; ++i)
    code_point = code_point << 6 | (static_cast<unsigned char>(text[at++]) & 0x3F);
  return code_point;
}

// Whether normalisation may move the code point before what stands in front of it.
bool is_mark(const icu::Normalizer2& decomposer, UChar32 code_point) {
  return code_point >= 0x300 && decomposer.hasBoundaryBefore(code_point) == 0;
}

bool has_long_run_of_marks(std::string_view text) {
  const icu::Normalizer2& decomposer = nfd();
  std::size_t run = 0;
  for (std::size_t at = 0; at < text.size();) {
    run = is_mark(decomposer, next_code_point(text, at)) ? run + 1 : 0;
    if (run > longest_run_for_icu) return true;
  }
  return false;
}

void append_decomposed(const icu::Normalizer2& decomposer, UChar32 mark, std::vector<UChar32>& marks) {
  icu::UnicodeString decomposition;
  if (decomposer.getDecomposition(mark, decomposition) == 0) {
    marks.push_back(mark);
    return;
  }
  for (std::int32_t i = 0; i < decomposition.length(); i = decomposition.moveIndex32(i, 1)) {
    marks.push_back(decomposition.char32At(i));
  }
}

// The text with each run of marks decomposed and in canonical order.
std::string with_ordered_marks(std::string_view text) {
  const icu::Normalizer2& decomposer = nfd();
  std::string ordered;
  std::vector<UChar32> marks;
  const auto append_marks = [&] {
    std::stable_sort(marks.begin(), marks.end(),
                     [](UChar32 a, UChar32 b) { return u_getCombiningClass(a) < u_getCombiningClass(b); });
    icu::UnicodeString::fromUTF32(marks.data(), static_cast<std::int32_t>(marks.size()))
        .toUTF8String(ordered);
    marks.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const UChar32 code_point = next_code_point(text, at);
    if (is_mark(decomposer, code_point)) {
      append_decomposed(decomposer, code_point, marks);
      continue;
    }
    if (!marks.empty()) append_marks();
    ordered.append(text, begin, at - begin);
  }
  append_marks();
  return ordered;
}
}  // namespace

bool is_known_nfc(std::string_view text) {
  if (is_below_marks(text)) return true;
  if (has_long_run_of_marks(text)) return false;
  UErrorCode status = U_ZERO_ERROR;
  const bool normalized = nfc().isNormalizedUTF8(piece_of(text), status) != 0;
  check(status);
  return normalized;
}

std::string to_nfc(std::string_view text) {
  std::string normalized;
  icu::StringByteSink<std::string> sink(&normalized);
  UErrorCode status = U_ZERO_ERROR;
  const bool ordered = !has_long_run_of_marks(text);
  nfc().normalizeUTF8(0, piece_of(ordered ? text : with_ordered_marks(text)), sink, nullptr, status);
  check(status);
  return normalized;
}

}  // namespace calla
