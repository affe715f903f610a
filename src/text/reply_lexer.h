// The tags of the model's call format, found in a reply whose bytes arrive in arbitrary pieces.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calla {

enum class LexemeKind : std::uint8_t {
  text,            // anything else; a long text comes in several lexemes
  space,           // ASCII whitespace; a long run may come in several lexemes
  tool_call,       // <tool_call>
  tool_call_end,   // </tool_call>
  function,        // <function=NAME>
  function_end,    // </function>
  parameter,       // <parameter=NAME>
  parameter_end,   // </parameter>
  think,           // <think>
  think_end,       // </think>
  unfinished_tag,  // the reply ends in what could have become a tag
};

/// The kinds of tags that matter to the reader at its present place; others are text and need not be waited
/// for.
class TagSet {
 public:
  template <typename... Kinds>
  constexpr explicit TagSet(Kinds... kinds) : bits_((0U | ... | bit(kinds))) {}
  constexpr bool contains(LexemeKind kind) const { return (bits_ & bit(kind)) != 0; }
  constexpr TagSet operator|(TagSet other) const {
    other.bits_ |= bits_;
    return other;
  }

 private:
  static constexpr std::uint32_t bit(LexemeKind kind) { return 1U << static_cast<unsigned>(kind); }
  std::uint32_t bits_;
};

/// A stretch [begin, end) of the reply, offsets counted from its first byte.
struct Lexeme {
  LexemeKind kind = LexemeKind::text;
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string_view name =
      {};                // NAME of a function or parameter; valid until the lexer takes or forgets bytes
  bool control = false;  // a think tag that came as one control token
};

bool is_space(char byte);

/// Holds the bytes of the reply that somebody may still need, and reads lexemes from them. Reading on after
/// more bytes have come never looks twice at the same bytes of a name, so that the work stays linear.
class ReplyLexer {
 public:
  /// `control_token`: the bytes are the text of one control token. <think> and </think> are then reported as
  /// tags even to a reader that does not ask for them.
  void append(std::string_view bytes, bool control_token);
  /// No more bytes will come.
  void end() { ended_ = true; }

  /// The next lexeme, or nothing as long as more bytes could change it (after end(): when there is none).
  std::optional<Lexeme> next(TagSet wanted);
  /// Where the next lexeme begins.
  std::size_t position() const { return position_; }
  /// Reads on from an earlier place, which has not been forgotten.
  void rewind(std::size_t offset) { position_ = offset; }
  /// Bytes before `offset` will not be asked for any more.
  void forget_before(std::size_t offset);

  std::string_view text(std::size_t begin, std::size_t end) const;
  std::string_view text(const Lexeme& lexeme) const { return text(lexeme.begin, lexeme.end); }

  bool at_line_start(std::size_t offset) const;
  /// Makes a place count as the start of a line whatever stands before it.
  void mark_line_start(std::size_t offset) { line_start_ = offset; }

 private:
  std::size_t size() const { return base_ + buffer_.size(); }
  char at(std::size_t offset) const { return buffer_[offset - base_]; }
  std::size_t find_end_of_run(bool of_space) const;
  std::optional<Lexeme> take(const Lexeme& lexeme);
  bool is_control(std::size_t offset) const;

  std::string buffer_;
  std::size_t base_ = 0;      // offset of the buffer's first byte
  std::size_t position_ = 0;  // where the next lexeme begins
  std::size_t name_begin_ =
      0;  // of the name that is being waited for, and how far it has been looked through
  std::size_t name_scanned_ = 0;
  std::size_t line_start_ = 0;
  std::vector<std::size_t> control_;  // offsets of the think tags that came as control tokens, ascending
  bool ended_ = false;
};

}  // namespace calla
