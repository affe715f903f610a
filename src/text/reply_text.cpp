#include "text/reply_text.h"

#include <algorithm>
#include <utility>

#include "text/reply_lexer.h"

namespace calla {

std::string ReplyText::write(std::string_view bytes) {
  if (leading_ != Leading::kept) {
    const auto dropped = [&](char byte) {
      return leading_ == Leading::without_space ? is_space(byte) : byte == '\n' || byte == '\r';
    };
    bytes.remove_prefix(std::find_if_not(bytes.begin(), bytes.end(), dropped) - bytes.begin());
    if (bytes.empty()) return {};
    leading_ = Leading::kept;
  }
  const auto text_end = std::find_if_not(bytes.rbegin(), bytes.rend(), is_space).base();
  const auto text_size = static_cast<std::size_t>(text_end - bytes.begin());
  has_text_ = has_text_ || text_size > 0;
  if (has_text_ && space_policy_ == Space::sent)
    return assembler_.push(std::exchange(space_, {}).append(bytes));

  std::string certain;
  if (text_size > 0) certain = assembler_.push(std::exchange(space_, {}).append(bytes.substr(0, text_size)));
  if (text_size < bytes.size()) {
    certain += assembler_.finish();
    space_.append(bytes.substr(text_size));
  }
  return certain;
}

std::string ReplyText::finish(bool with_space) {
  std::string rest = assembler_.finish();
  if (with_space) rest += space_;
  space_.clear();
  return rest;
}

void ReplyText::begin_after_mark() {
  space_.clear();
  if (leading_ == Leading::kept) leading_ = Leading::without_newlines;
}

void ReplyText::begin_call() {
  space_.clear();
  if (!has_text_) leading_ = Leading::without_space;
}

}  // namespace calla
