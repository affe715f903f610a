// The added tokens of a tokenizer: control tokens, found in the raw text by their own text.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"

namespace calla {

struct AddedToken {
  Token id = 0;
  std::string content;
  bool special = false;  // as the file has it: hidden from a reader
};

class AddedTokens {
 public:
  /// Contents must be different and not empty, ids different.
  explicit AddedTokens(std::vector<AddedToken> tokens);
  ~AddedTokens() = default;
  AddedTokens(AddedTokens&&) noexcept = default;
  AddedTokens& operator=(AddedTokens&&) noexcept = default;
  AddedTokens(const AddedTokens&) = delete;  // by_id_ points into tokens_
  AddedTokens& operator=(const AddedTokens&) = delete;

  struct Match {
    std::size_t begin = 0;  // byte offset in the text
    const AddedToken* token = nullptr;
  };
  /// The leftmost added token of text[from, to), of several at one place the longest.
  std::optional<Match> find(std::string_view text, std::size_t from, std::size_t to) const;

  /// The added token of an id or of a content, or null.
  const AddedToken* with_id(Token id) const;
  const AddedToken* with_content(std::string_view content) const;
  /// One more than the largest id.
  Token size() const { return by_id_.empty() ? 0 : by_id_.back()->id + 1; }

 private:
  std::vector<AddedToken> tokens_;        // longest first
  std::vector<const AddedToken*> by_id_;  // ascending; they point into tokens_
  std::string first_bytes_;               // each once
};

}  // namespace calla
