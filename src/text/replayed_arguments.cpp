#include "text/replayed_arguments.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "text/python_text.h"

namespace calla {
namespace {
bool is_empty(const Json& value) { return value.is_null() || (value.is_array() && value.empty()); }

std::optional<Json> parsed(std::string_view text) {
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded() || json_nests_too_deeply(value)) return std::nullopt;
  return value;
}

/// Bytes of the escape sequence at the text's beginning, both halves of a surrogate pair together.
std::size_t escape_length(std::string_view text) {
  if (text.size() < 2 || text[1] != 'u') return 2;
  const bool high_surrogate = text.size() >= 4 && (text[2] == 'd' || text[2] == 'D') &&
                              std::string_view("89abAB").find(text[3]) != std::string_view::npos;
  return high_surrogate ? 12 : 6;
}

/// A beginning of a JSON text and the brackets that are open at its end, outermost first, as their closing
/// characters.
struct Beginning {
  std::string_view text;
  std::string open;
  std::optional<Json> closed(std::string_view quote = {}) const {
    std::string whole(text);
    whole.append(quote).append(open.rbegin(), open.rend());
    std::optional<Json> value = parsed(whole);
    return value && value->is_object() ? value : std::nullopt;
  }
};

/// The object of which `text` is the beginning, as far as it goes.
std::optional<Json> closed_object(std::string_view text) {
  constexpr std::size_t max_open = 256;  // keeps the copies below cheap
  Beginning here;
  Beginning before_comma;
  bool in_string = false;
  std::size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    std::size_t step = 1;
    if (in_string) {
      if (c == '\\') step = escape_length(text.substr(at));
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (here.open.size() == max_open) return std::nullopt;
      here.open += c == '{' ? '}' : ']';
    } else if (c == '}' || c == ']') {
      if (here.open.empty() || here.open.back() != c) return std::nullopt;
      here.open.pop_back();
    } else if (c == ',') {
      before_comma = {text.substr(0, at), here.open};
    }
    if (at + step > text.size()) break;  // cut inside an escape sequence, which says nothing yet
    at += step;
  }
  here.text = text.substr(0, at);
  std::optional<Json> whole = here.closed(in_string ? "\"" : "");
  return whole ? whole : before_comma.closed();
}

Json arguments_of_text(const std::string& text) {
  if (python_strip(text).empty()) return Json::object();
  std::optional<Json> value = parsed(text);
  if (value && is_empty(*value)) return Json::object();
  if (value && value->is_object()) return *std::move(value);
  if (!value) {
    if (std::optional<Json> object = closed_object(text)) return *std::move(object);
  }
  Json raw = Json::object();
  raw["arguments"] = text;
  return raw;
}
}  // namespace

Json replayed_arguments(const Json& sent) {
  if (sent.is_object()) return sent;
  if (is_empty(sent)) return Json::object();
  return arguments_of_text(sent.is_string() ? sent.get<std::string>() : python_json(sent));
}

}  // namespace calla
