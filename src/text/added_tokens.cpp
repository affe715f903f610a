#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

namespace calla {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const auto& a, const auto& b) { return a.content.size() > b.content.size(); });
  for (const AddedToken& token : tokens_) {
    by_id_.push_back(&token);
    if (first_bytes_.find(token.content[0]) == std::string::npos) first_bytes_.push_back(token.content[0]);
  }
  std::sort(by_id_.begin(), by_id_.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, std::size_t from,
                                                    std::size_t to) const {
  const std::string_view part = text.substr(0, to);
  const auto next_candidate = [&](std::size_t at) {
    // All begin with '<' in practice, and looking for one byte is many times faster than for one of several.
    return first_bytes_.size() == 1 ? part.find(first_bytes_[0], at) : part.find_first_of(first_bytes_, at);
  };
  for (std::size_t at = next_candidate(from); at != std::string_view::npos; at = next_candidate(at + 1)) {
    const std::string_view rest = part.substr(at);
    for (const AddedToken& token : tokens_) {
      if (rest.starts_with(token.content)) return Match{at, &token};
    }
  }
  return std::nullopt;
}

const AddedToken* AddedTokens::with_id(Token id) const {
  const auto found =
      std::lower_bound(by_id_.begin(), by_id_.end(), id,
                       [](const AddedToken* token, Token wanted) { return token->id < wanted; });
  return found != by_id_.end() && (*found)->id == id ? *found : nullptr;
}

const AddedToken* AddedTokens::with_content(std::string_view content) const {
  const auto found = std::find_if(tokens_.begin(), tokens_.end(),
                                  [&](const AddedToken& token) { return token.content == content; });
  return found == tokens_.end() ? nullptr : &*found;
}

}  // namespace calla
