// The reasoning or the content of a reply: plain text whose surrounding whitespace may turn out not to belong
// to it.
#pragma once
#include <string>
#include <string_view>

#include "text/utf8.h"

namespace calla {

/// Takes the bytes of a text and returns what is certain of it, as well-formed UTF-8.
class ReplyText {
 public:
  enum class Space {
    held,  // whitespace waits for the text after it
    sent,  // only whitespace before the first text waits
  };
  explicit ReplyText(Space space) : space_policy_(space) {}

  std::string write(std::string_view bytes);
  /// Something other than text of this kind follows: a code point that is still incomplete stays so.
  std::string end_code_point() { return assembler_.finish(); }
  /// Ends the text, with or without the whitespace that was held.
  std::string finish(bool with_space);

  /// Whether anything but whitespace has been written.
  bool has_text() const { return has_text_; }
  /// The text begins at a mark of the format: whitespace before it and newlines right after it are not part
  /// of it. Only before the first text.
  void begin_after_mark();
  /// A call begins: whitespace before it is dropped, and whitespace after it unless there is text to set it
  /// apart from.
  void begin_call();

 private:
  enum class Leading { kept, without_newlines, without_space };
  Space space_policy_;
  Leading leading_ = Leading::kept;
  bool has_text_ = false;
  std::string space_;
  Utf8Assembler assembler_;
};

}  // namespace calla
