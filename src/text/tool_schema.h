// The declared tools of a conversation, and the conversion of a parameter's text by its JSON schema.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"

namespace calla {

class ToolSet {
 public:
  ToolSet() = default;
  /// Reads the names and parameter schemas of tools as they are sent ({"type": "function", "function": {...}}
  /// or the inner object alone). A schema that cannot be understood counts as no schema; this never throws
  /// for one.
  explicit ToolSet(std::span<const Json> tools);

  bool empty() const { return schemas_.empty(); }
  /// The name of the tool, where there is just one.
  std::optional<std::string> only_name() const;
  bool declares(std::string_view tool) const { return schemas_.find(tool) != schemas_.end(); }

  /// Whether the parameter can only be a plain string: its text may then be streamed before it is complete.
  bool is_plain_string(std::string_view tool, std::string_view parameter) const;
  /// The JSON text of a parameter's value: converted when it fits the declared type (the union of type, type
  /// list, anyOf/oneOf/allOf, $ref and enum), else the raw text as a JSON string.
  /// Numbers, objects and arrays keep the text that they came in. Never throws for any input.
  std::string convert(std::string_view tool, std::string_view parameter, std::string_view value) const;

 private:
  std::map<std::string, Json, std::less<>> schemas_;
};

/// `text` as a JSON string literal with its quotes, ill-formed UTF-8 replaced by U+FFFD.
std::string json_string(std::string_view text);
/// `text`, which is well-formed UTF-8, as it stands between the quotes of a JSON string: texts may be escaped
/// piece by piece.
std::string json_escaped(std::string_view text);

}  // namespace calla
