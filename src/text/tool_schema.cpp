#include "text/tool_schema.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <unordered_set>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace calla {
namespace {

// Deeper values stay text: readers of the arguments may recurse.
constexpr int max_nesting = 200;

using Schemas = std::vector<const Json*>;

/// What the schemas of a parameter allow, together.
struct Allowed {
  bool string = false;
  bool integer = false;
  bool number = false;
  bool boolean = false;
  bool null = false;
  bool object = false;
  bool array = false;
  Schemas members;  // of enum and const

  bool only_strings() const {
    return string && !integer && !number && !boolean && !null && !object && !array;
  }
  bool nothing() const {
    return !string && !integer && !number && !boolean && !null && !object && !array && members.empty();
  }
};

const Json* find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(key));
  return found == object.end() ? nullptr : &*found;
}

int hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  const char lower = static_cast<char>(digit | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0) {
      decoded += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

/// The schema that a reference within the same document ("#/$defs/X") points to, or null.
const Json* resolve(const Json& root, std::string_view reference) {
  if (!reference.starts_with('#')) return nullptr;
  try {
    const Json::json_pointer pointer(percent_decoded(reference.substr(1)));
    return root.contains(pointer) ? &root.at(pointer) : nullptr;
  } catch (const Json::exception&) {
    return nullptr;  // not a JSON pointer
  }
}

/// The schemas and, transitively, all that they combine or refer to; each once, so that circles end.
Schemas expand(const Json& root, const Schemas& schemas) {
  Schemas reached;
  std::unordered_set<const Json*> seen;
  const auto reach = [&](const Json* schema) {
    if (schema != nullptr && seen.insert(schema).second) reached.push_back(schema);
  };
  for (const Json* schema : schemas) reach(schema);
  for (std::size_t next = 0; next < reached.size();) {
    const Json& schema = *reached[next++];
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      const Json* parts = find(schema, key);
      if (parts == nullptr || !parts->is_array()) continue;
      for (const Json& part : *parts) reach(&part);
    }
    const Json* reference = find(schema, "$ref");
    if (reference != nullptr && reference->is_string()) {
      reach(resolve(root, reference->get_ref<const std::string&>()));
    }
  }
  return reached;
}

void allow_type(const Json& type, Allowed& allowed) {
  if (!type.is_string()) return;
  const auto& name = type.get_ref<const std::string&>();
  if (name == "string") allowed.string = true;
  if (name == "integer") allowed.integer = true;
  if (name == "number") allowed.number = true;
  if (name == "boolean") allowed.boolean = true;
  if (name == "null") allowed.null = true;
  if (name == "object") allowed.object = true;
  if (name == "array") allowed.array = true;
}

/// A string member does not allow other strings, so that a value of another allowed type is still converted.
void allow_member(const Json& member, Allowed& allowed) {
  allowed.members.push_back(&member);
  allowed.integer = allowed.integer || member.is_number_integer();
  allowed.number = allowed.number || member.is_number_float();
  allowed.boolean = allowed.boolean || member.is_boolean();
  allowed.null = allowed.null || member.is_null();
  allowed.object = allowed.object || member.is_object();
  allowed.array = allowed.array || member.is_array();
}

Allowed allowed_values(const Json& tool, std::string_view parameter) {
  Schemas declarations;
  for (const Json* schema : expand(tool, {&tool})) {
    const Json* properties = find(*schema, "properties");
    if (properties == nullptr) continue;
    if (const Json* declaration = find(*properties, parameter)) declarations.push_back(declaration);
  }
  Allowed allowed;
  for (const Json* schema : expand(tool, declarations)) {
    if (const Json* type = find(*schema, "type")) {
      if (type->is_array()) {
        for (const Json& one : *type) allow_type(one, allowed);
      } else {
        allow_type(*type, allowed);
      }
    }
    const Json* members = find(*schema, "enum");
    if (members != nullptr && members->is_array()) {
      for (const Json& member : *members) allow_member(member, allowed);
    }
    if (const Json* member = find(*schema, "const")) allow_member(*member, allowed);
  }
  return allowed;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\r\n\f\v";
  const std::size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
}

/// How deep the objects and arrays of a JSON text lie in each other.
int nesting(std::string_view json) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char byte = json[i];
    if (in_string) {
      if (byte == '\\') ++i;
      if (byte == '"') in_string = false;
    } else if (byte == '"') {
      in_string = true;
    } else if (byte == '{' || byte == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (byte == '}' || byte == ']') {
      --depth;
    }
  }
  return deepest;
}

/// Whether the text, without whitespace around it, is one JSON value that may stand in the arguments as it
/// is.
bool is_json(std::string_view text) {
  // The library takes a NUL for the end of the text, and skips a byte order mark.
  if (text.empty() || text.find('\0') != std::string_view::npos || text.front() == '\xEF') return false;
  return Json::accept(text) && nesting(text) <= max_nesting;
}

bool is_json_number(std::string_view text) {
  return !text.empty() && (text.front() == '-' || (text.front() >= '0' && text.front() <= '9')) &&
         is_json(text);
}

/// The JSON text of an integer, digit for digit; an integral float loses its fraction.
std::optional<std::string> as_integer(std::string_view text) {
  if (!is_json_number(text) || text.find_first_of("eE") != std::string_view::npos) return std::nullopt;
  const std::size_t point = text.find('.');
  if (point != std::string_view::npos && text.find_first_not_of('0', point + 1) != std::string_view::npos) {
    return std::nullopt;
  }
  return std::string(text.substr(0, point));
}

std::optional<std::string> as_member(const Schemas& members, std::string_view value) {
  for (const Json* member : members) {
    if (member->is_string() && member->get_ref<const std::string&>() == value) return json_string(value);
  }
  const std::string_view text = trimmed(value);
  if (members.empty() || !is_json(text)) return std::nullopt;
  const Json parsed = Json::parse(text);
  for (const Json* member : members) {
    if (*member == parsed) return member->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return std::nullopt;
}

/// The JSON text of a value that fits other than as a string.
std::optional<std::string> converted(const Allowed& allowed, std::string_view value) {
  if (auto member = as_member(allowed.members, value)) return member;

  const bool untyped = allowed.nothing();
  const std::string_view text = trimmed(value);
  if (text.empty()) return std::nullopt;
  if ((((allowed.object || untyped) && text.front() == '{') ||
       ((allowed.array || untyped) && text.front() == '[')) &&
      is_json(text)) {
    return std::string(text);
  }
  if (allowed.null && (text == "null" || (text == "None" && !allowed.string))) return "null";
  if (allowed.string) return std::nullopt;

  if (allowed.boolean && equals_ignoring_case(text, "true")) return "true";
  if (allowed.boolean && equals_ignoring_case(text, "false")) return "false";
  if (allowed.number && is_json_number(text)) return std::string(text);
  if (allowed.integer) {
    if (auto integer = as_integer(text)) return integer;
  }
  if (allowed.boolean && text == "1") return "true";
  if (allowed.boolean && text == "0") return "false";
  return std::nullopt;
}

}  // namespace

ToolSet::ToolSet(std::span<const Json> tools) {
  for (const Json& tool : tools) {
    const Json* function = find(tool, "function");
    const Json& declaration = function != nullptr ? *function : tool;
    const Json* name = find(declaration, "name");
    if (name == nullptr || !name->is_string() || name->get_ref<const std::string&>().empty()) continue;
    const Json* parameters = find(declaration, "parameters");
    schemas_.emplace(name->get<std::string>(), parameters != nullptr ? *parameters : Json());
  }
}

std::optional<std::string> ToolSet::only_name() const {
  if (schemas_.size() != 1) return std::nullopt;
  return schemas_.begin()->first;
}

bool ToolSet::is_plain_string(std::string_view tool, std::string_view parameter) const {
  const auto schema = schemas_.find(tool);
  if (schema == schemas_.end()) return false;
  const Allowed allowed = allowed_values(schema->second, parameter);
  return allowed.only_strings() && allowed.members.empty();
}

std::string ToolSet::convert(std::string_view tool, std::string_view parameter,
                             std::string_view value) const {
  const auto schema = schemas_.find(tool);
  const Allowed allowed = schema == schemas_.end() ? Allowed{} : allowed_values(schema->second, parameter);
  if (auto json = converted(allowed, value)) return *json;
  return json_string(value);
}

std::string json_string(std::string_view text) { return '"' + json_escaped(mend_utf8(text)) + '"'; }

std::string json_escaped(std::string_view text) {
  constexpr std::string_view hex = "0123456789abcdef";
  std::string escaped;
  escaped.reserve(text.size());
  for (const char byte : text) {
    const auto code = static_cast<unsigned char>(byte);
    if (byte == '"' || byte == '\\') {
      escaped += '\\';
      escaped += byte;
    } else if (byte == '\n') {
      escaped += "\\n";
    } else if (byte == '\t') {
      escaped += "\\t";
    } else if (byte == '\r') {
      escaped += "\\r";
    } else if (code < 0x20) {
      escaped += "\\u00";
      escaped += hex[code >> 4U];
      escaped += hex[code & 0xFU];
    } else {
      escaped += byte;
    }
  }
  return escaped;
}

}  // namespace calla
