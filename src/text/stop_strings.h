// Stop strings: the texts at which a reply ends, found while it streams.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace calla {

/// Passes a text through up to the first stop string. The reply ends at the first byte with which any stop
/// string is complete, because no later text may be waited for; of several that are complete there the
/// longest counts. The result does not depend on how the text was cut into pieces, and pieces of whole code
/// points give whole code points. Work is linear in the text for each stop string.
class StopStrings {
 public:
  /// Empty stop strings are ignored.
  explicit StopStrings(const std::vector<std::string>& stops);

  /// Takes the next piece. Returns the text that is certain to stand before any stop string: all but the
  /// longest end that begins one. After a match there is no further text.
  std::string push(std::string_view piece);

  /// Ends the text: returns what was held back. Nothing may be pushed afterwards.
  std::string finish();

  /// The stop string that was found.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  // Knuth, Morris and Pratt's matcher.
  struct Matcher {
    std::string stop;
    std::vector<std::size_t> border;  // [n]: the longest proper prefix of stop that ends its first n bytes
    std::size_t length = 0;           // of the longest prefix of stop that ends the text
    bool advance(char byte);          // whether the stop string is complete
  };

  // What is held back is always a beginning of some stop string, so that it need not be stored.
  std::string_view held() const;

  std::vector<Matcher> matchers_;
  std::optional<std::string> matched_;
};

}  // namespace calla
