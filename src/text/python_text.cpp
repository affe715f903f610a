#include "text/python_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace calla {
namespace {
constexpr int max_nesting = 256;

/// Whether the bytes are one code point of str.isspace in UTF-8. All of them take at most three bytes, and
/// none is the end of a longer sequence, so a text's end can be compared as well as its beginning.
bool is_space(std::string_view bytes) {
  if (bytes.size() == 1) {
    const char c = bytes[0];
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1C' && c <= '\x1F');
  }
  if (bytes.size() == 2) return bytes == "\u0085" || bytes == "\u00A0";
  return bytes == "\u1680" || (bytes >= "\u2000" && bytes <= "\u200A") || bytes == "\u2028" ||
         bytes == "\u2029" || bytes == "\u202F" || bytes == "\u205F" || bytes == "\u3000";
}

void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (c >= '\0' && c < ' ') {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

/// repr() of a float: the shortest digits that read back as the same number, with an exponent below 1e-4 and
/// from 1e16 on.
void append_float(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += std::isnan(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity";
    return;
  }
  std::array<char, 64> buffer{};
  const auto write = [&](std::chars_format format) {
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format).ptr;
    return std::string_view(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  };
  const double magnitude = std::abs(value);
  if (magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16)) {
    out += write(std::chars_format::scientific);
    return;
  }
  const std::string_view digits = write(std::chars_format::fixed);
  out += digits;
  if (digits.find('.') == std::string_view::npos) out += ".0";
}

void append_json(std::string& out, const Json& value) {
  std::string_view separator;
  switch (value.type()) {
    case Json::value_t::object:
      out += '{';
      for (const auto& [key, member] : value.items()) {
        out += separator;
        append_string(out, key);
        out += ": ";
        append_json(out, member);
        separator = ", ";
      }
      out += '}';
      break;
    case Json::value_t::array:
      out += '[';
      for (const Json& element : value) {
        out += separator;
        append_json(out, element);
        separator = ", ";
      }
      out += ']';
      break;
    case Json::value_t::string:
      append_string(out, value.get_ref<const std::string&>());
      break;
    case Json::value_t::number_float:
      append_float(out, value.get<double>());
      break;
    default:
      out += value.dump();  // integers and the words true, false and null, which Python writes alike
  }
}

bool nests_deeper(const Json& value, int levels) {
  if (!value.is_structured()) return false;
  if (levels == 0) return true;
  return std::any_of(value.begin(), value.end(),
                     [&](const Json& inner) { return nests_deeper(inner, levels - 1); });
}
}  // namespace

std::string_view python_strip(std::string_view text) {
  const auto space_at_front = [&]() -> std::size_t {
    for (std::size_t n = 1; n <= std::min<std::size_t>(3, text.size()); ++n) {
      if (is_space(text.substr(0, n))) return n;
    }
    return 0;
  };
  const auto space_at_back = [&]() -> std::size_t {
    for (std::size_t n = 1; n <= std::min<std::size_t>(3, text.size()); ++n) {
      if (is_space(text.substr(text.size() - n))) return n;
    }
    return 0;
  };
  while (const std::size_t n = space_at_front()) text.remove_prefix(n);
  while (const std::size_t n = space_at_back()) text.remove_suffix(n);
  return text;
}

std::string_view strip_leading_newlines(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

std::string_view strip_trailing_newlines(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

std::string python_json(const Json& value) {
  std::string out;
  append_json(out, value);
  return out;
}

bool json_nests_too_deeply(const Json& value) { return nests_deeper(value, max_nesting); }

}  // namespace calla
