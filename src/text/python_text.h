// The text operations of the model's own template, as Python defines them: `trim`, `lstrip`, `rstrip` and
// `tojson`.
#pragma once
#include <string>
#include <string_view>

#include "base/json.h"

namespace calla {

/// str.strip(): the text without Unicode white space (str.isspace) at both ends.
std::string_view python_strip(std::string_view text);

/// str.lstrip("\n") and str.rstrip("\n").
std::string_view strip_leading_newlines(std::string_view text);
std::string_view strip_trailing_newlines(std::string_view text);

/// json.dumps(value, ensure_ascii=False): ", " and ": " between, keys in their order, raw UTF-8, floats as
/// repr() writes them. Recursive: what a stranger sent is to be checked with json_nests_too_deeply first.
std::string python_json(const Json& value);

/// Whether arrays and objects stand more than 256 deep in each other, which no tool schema and no argument
/// does.
bool json_nests_too_deeply(const Json& value);

}  // namespace calla
