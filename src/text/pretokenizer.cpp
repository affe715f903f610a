#include "text/pretokenizer.h"

#include <algorithm>
#include <array>
#include <new>
#include <string>

#include <fmt/format.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace calla {
namespace {
// The model's regex has about 130 characters; what the file holds is not compiled at any length.
constexpr std::size_t longest_regex = 4096;

template <auto Free>
struct Deleter {
  template <typename Object>
  void operator()(Object* object) const {
    Free(object);
  }
};
using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;

template <typename Pointer>
Pointer checked(Pointer pointer) {
  if (!pointer) throw std::bad_alloc();
  return pointer;
}

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  const int length = pcre2_get_error_message(code, text.data(), text.size());
  return length < 0 ? fmt::format("PCRE2 error {}", code) : std::string(text.begin(), text.begin() + length);
}

PCRE2_SPTR code_units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());  // NOLINT(cppcoreguidelines-pro-type-reinterpret-cast)
}

// PCRE2's own \s includes U+180E, which has not been white space since Unicode 6.3. A property means the same
// inside and outside a character class.
std::string with_unicode_white_space(std::string_view regex) {
  std::string rewritten;
  for (std::size_t i = 0; i < regex.size(); ++i) {
    const std::string_view escape = regex.substr(i, 2);
    if (escape == "\\s") {
      rewritten.append("\\p{White_Space}");
    } else if (escape == "\\S") {
      rewritten.append("\\P{White_Space}");
    } else if (escape[0] == '\\') {
      rewritten.append(escape);
    } else {
      rewritten.push_back(escape[0]);
      continue;
    }
    ++i;
  }
  return rewritten;
}
}  // namespace

struct Pretokenizer::Regex {
  Code code;
  bool jit = false;
};

Pretokenizer::Pretokenizer(std::string_view regex, std::string_view where) {
  if (regex.size() > longest_regex) {
    throw Error(where, fmt::format("has {} bytes", regex.size()),
                fmt::format("expected a regular expression of at most {}", longest_regex));
  }
  const std::string rewritten = with_unicode_white_space(regex);
  int fault = 0;
  std::size_t offset = 0;
  Code code(pcre2_compile(code_units(rewritten), rewritten.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &fault, &offset, nullptr));
  if (!code) throw Error(where, "is not a regular expression: " + message_of(fault));
  const bool jit = pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE) == 0;
  regex_ = std::make_unique<const Regex>(Regex{std::move(code), jit});
}

Pretokenizer::~Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;

struct Pretokenizer::Pieces::Matcher {
  const Regex& regex;
  MatchData data;
  MatchContext context;
};

Pretokenizer::Pieces::Pieces(const Pretokenizer& pretokenizer, std::string_view text)
    : matcher_(std::make_unique<Matcher>(
          Matcher{*pretokenizer.regex_, checked(MatchData(pcre2_match_data_create(1, nullptr))),
                  checked(MatchContext(pcre2_match_context_create(nullptr)))})),
      text_(text) {
  // Backtracking over a run of spaces takes a step for each; more than a few for each byte is a regex gone
  // astray.
  constexpr std::size_t least_steps = 10'000'000;
  pcre2_set_match_limit(matcher_->context.get(), static_cast<std::uint32_t>(std::min<std::size_t>(
                                                     least_steps + 4 * text.size(), UINT32_MAX)));
}

Pretokenizer::Pieces::~Pieces() = default;

std::optional<Pretokenizer::Pieces::Range> Pretokenizer::Pieces::match(std::size_t from) {
  const auto& [regex, data, context] = *matcher_;
  int result = PCRE2_ERROR_JIT_STACKLIMIT;
  if (regex.jit) {
    result = pcre2_jit_match(regex.code.get(), code_units(text_), text_.size(), from, PCRE2_NO_UTF_CHECK,
                             data.get(), context.get());
  }
  // The interpreter keeps its stack on the heap, and so copes with what the JIT's stack is too small for.
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    result = pcre2_match(regex.code.get(), code_units(text_), text_.size(), from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), context.get());
  }
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) throw Error("the text", "cannot be split by the tokenizer's regex: " + message_of(result));
  const std::size_t* offsets = pcre2_get_ovector_pointer(data.get());
  // \K in a lookbehind can place the beginning before `from`, and a lookahead the end before the beginning.
  const std::size_t begin = std::max(offsets[0], from);
  return Range{begin, std::max(offsets[1], begin)};
}

// The piece from what has been given out to `end`.
std::string_view Pretokenizer::Pieces::take(std::size_t end) {
  const std::string_view piece = text_.substr(taken_, end - taken_);
  taken_ = end;
  return piece;
}

std::optional<std::string_view> Pretokenizer::Pieces::next() {
  // The match itself, when the last piece was the unmatched text before it.
  if (match_end_ && taken_ < *match_end_) return take(*match_end_);
  while (search_ < text_.size()) {
    const std::optional<Range> found = match(search_);
    if (!found) break;
    const auto [begin, end] = *found;
    if (begin == end && match_end_ == end) {
      // Empty, and nothing since the last match: go on behind the next code point, or this would never end.
      do ++search_;
      while (search_ < text_.size() && (static_cast<unsigned char>(text_[search_]) & 0xC0) == 0x80);
      continue;
    }
    search_ = end;
    match_end_ = end;
    if (taken_ < begin) return take(begin);
    if (taken_ < end) return take(end);
  }
  search_ = text_.size();
  if (taken_ == text_.size()) return std::nullopt;
  return take(text_.size());
}

}  // namespace calla
