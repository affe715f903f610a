// Splits text into the pieces that the merges never cross, by the tokenizer file's own regular expression.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace calla {

class Pretokenizer {
 public:
  /// Compiles the regex: as Oniguruma reads it, \s is the Unicode property White_Space. Throws Error, in
  /// which `where` names its place, when it is not a regular expression.
  Pretokenizer(std::string_view regex, std::string_view where);
  ~Pretokenizer();
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;
  Pretokenizer(const Pretokenizer&) = delete;
  Pretokenizer& operator=(const Pretokenizer&) = delete;

  /// The pieces of one text, which is well-formed UTF-8 and must outlive this object, as must the
  /// pretokenizer: every match, and every stretch that no match covers. None is empty; joined, they are the
  /// text.
  class Pieces {
   public:
    Pieces(const Pretokenizer& pretokenizer, std::string_view text);
    ~Pieces();
    Pieces(const Pieces&) = delete;
    Pieces(Pieces&&) = delete;
    Pieces& operator=(const Pieces&) = delete;
    Pieces& operator=(Pieces&&) = delete;

    /// The next piece; nothing at the end. Throws Error when matching exceeds what the text's length can
    /// explain.
    std::optional<std::string_view> next();

   private:
    struct Matcher;
    using Range = std::pair<std::size_t, std::size_t>;
    std::optional<Range> match(std::size_t from);
    std::string_view take(std::size_t end);

    std::unique_ptr<Matcher> matcher_;
    std::string_view text_;
    std::size_t taken_ = 0;                 // bytes given out
    std::size_t search_ = 0;                // where the next match may begin
    std::optional<std::size_t> match_end_;  // of the last match
  };

 private:
  struct Regex;
  std::unique_ptr<const Regex> regex_;
};

}  // namespace calla
