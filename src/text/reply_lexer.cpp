#include "text/reply_lexer.h"

#include <algorithm>
#include <array>

namespace calla {
namespace {

struct Tag {
  LexemeKind kind;
  std::string_view literal;
  bool named;  // a name and ">" follow the literal
};

// No literal is the beginning of another, so at most one can match.
constexpr std::array<Tag, 8> tags{{
    {LexemeKind::tool_call, "<tool_call>", false},
    {LexemeKind::tool_call_end, "</tool_call>", false},
    {LexemeKind::function, "<function=", true},
    {LexemeKind::function_end, "</function>", false},
    {LexemeKind::parameter, "<parameter=", true},
    {LexemeKind::parameter_end, "</parameter>", false},
    {LexemeKind::think, "<think>", false},
    {LexemeKind::think_end, "</think>", false},
}};

}  // namespace

bool is_space(char byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

void ReplyLexer::append(std::string_view bytes, bool control_token) {
  if (control_token && (bytes == "<think>" || bytes == "</think>")) control_.push_back(size());
  buffer_.append(bytes);
}

std::optional<Lexeme> ReplyLexer::next(TagSet wanted) {
  if (position_ == size()) return std::nullopt;
  if (is_space(at(position_))) return take({LexemeKind::space, position_, find_end_of_run(true)});
  if (at(position_) != '<') return take({LexemeKind::text, position_, find_end_of_run(false)});

  const std::string_view rest = text(position_, size());
  if (is_control(position_)) {
    const bool closing = rest[1] == '/';
    const std::size_t length = closing ? 8 : 7;
    return take(
        {closing ? LexemeKind::think_end : LexemeKind::think, position_, position_ + length, {}, true});
  }
  for (const Tag& tag : tags) {
    if (!wanted.contains(tag.kind)) continue;
    if (rest.size() < tag.literal.size() && tag.literal.starts_with(rest)) {
      if (!ended_) return std::nullopt;
      return take({LexemeKind::unfinished_tag, position_, size()});
    }
    if (!rest.starts_with(tag.literal)) continue;
    if (!tag.named) return take({tag.kind, position_, position_ + tag.literal.size()});

    const std::size_t name = position_ + tag.literal.size();
    if (name_begin_ != name) name_begin_ = name_scanned_ = name;
    while (name_scanned_ < size() &&
           std::string_view("<>\r\n").find(at(name_scanned_)) == std::string_view::npos) {
      ++name_scanned_;
    }
    if (name_scanned_ == size()) {
      if (!ended_) return std::nullopt;
      return take({LexemeKind::unfinished_tag, position_, size()});
    }
    if (at(name_scanned_) == '>' && name_scanned_ > name) {
      return take({tag.kind, position_, name_scanned_ + 1, text(name, name_scanned_)});
    }
  }
  return take({LexemeKind::text, position_, find_end_of_run(false)});
}

void ReplyLexer::forget_before(std::size_t offset) {
  // One byte more stays, which tells whether the next one begins a line. Erasing only once half of the buffer
  // is dispensable keeps the moving of the rest linear.
  if (offset <= base_ + 1) return;
  const std::size_t dispensable = offset - 1 - base_;
  if (dispensable < buffer_.size() - dispensable) return;
  buffer_.erase(0, dispensable);
  base_ += dispensable;
  control_.erase(control_.begin(), std::lower_bound(control_.begin(), control_.end(), base_));
}

std::string_view ReplyLexer::text(std::size_t begin, std::size_t end) const {
  return std::string_view(buffer_).substr(begin - base_, end - begin);
}

bool ReplyLexer::at_line_start(std::size_t offset) const {
  return offset == 0 || offset == line_start_ || at(offset - 1) == '\n';
}

/// The end of the run of space, or of other text up to the next "<", that begins at the position.
std::size_t ReplyLexer::find_end_of_run(bool of_space) const {
  std::size_t end = position_ + 1;
  while (end < size() && at(end) != '<' && is_space(at(end)) == of_space) ++end;
  return end;
}

std::optional<Lexeme> ReplyLexer::take(const Lexeme& lexeme) {
  position_ = lexeme.end;
  return lexeme;
}

bool ReplyLexer::is_control(std::size_t offset) const {
  return std::binary_search(control_.begin(), control_.end(), offset);
}

}  // namespace calla
