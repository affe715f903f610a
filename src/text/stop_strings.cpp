#include "text/stop_strings.h"

#include <algorithm>

namespace calla {

StopStrings::StopStrings(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) continue;
    std::vector<std::size_t> border(stop.size() + 1, 0);
    for (std::size_t n = 1, length = 0; n < stop.size(); ++n) {
      while (length > 0 && stop[n] != stop[length]) length = border[length];
      if (stop[n] == stop[length]) ++length;
      border[n + 1] = length;
    }
    matchers_.push_back({stop, std::move(border)});
  }
}

bool StopStrings::Matcher::advance(char byte) {
  while (length > 0 && byte != stop[length]) length = border[length];
  if (byte == stop[length]) ++length;
  return length == stop.size();
}

std::string_view StopStrings::held() const {
  std::string_view longest;
  for (const Matcher& matcher : matchers_) {
    if (matcher.length > longest.size()) longest = std::string_view(matcher.stop).substr(0, matcher.length);
  }
  return longest;
}

std::string StopStrings::push(std::string_view piece) {
  if (matched_) return {};
  const std::string_view before = held();
  std::size_t taken = 0;
  while (taken < piece.size() && !matched_) {
    const char byte = piece[taken++];
    for (Matcher& matcher : matchers_) {
      if (matcher.advance(byte) && (!matched_ || matcher.stop.size() > matched_->size()))
        matched_ = matcher.stop;
    }
  }
  const std::size_t certain = before.size() + taken - (matched_ ? matched_->size() : held().size());
  const std::size_t from_held = std::min(certain, before.size());
  return std::string(before.substr(0, from_held)).append(piece.substr(0, certain - from_held));
}

std::string StopStrings::finish() { return matched_ ? std::string() : std::string(held()); }

}  // namespace calla
