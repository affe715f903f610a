#include "base/json.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

namespace calla {
namespace {
/// A place as a person looks for it: line and column, from 1; the column counts bytes.
std::string place(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = offset - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
  return fmt::format("line {}, column {}", line, column);
}

/// Before anything is built: how deep values nest, and how many keys an object has.
void check_shape(std::string_view text, std::string_view where, int key_limit) {
  struct Open {
    bool object = false;
    int commas = 0;
  };
  std::vector<Open> open;
  bool in_string = false;
  const auto refuse = [&](std::string_view what, int limit, std::string_view unit, std::size_t at) {
    throw Error(where, fmt::format("{} {} {} at {}", what, limit, unit, place(text, at)));
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      open.push_back({.object = c == '{'});
      if (open.size() > json_depth_limit) refuse("is nested deeper than", json_depth_limit, "levels", i);
    } else if ((c == ']' || c == '}') && !open.empty()) {
      open.pop_back();
    } else if (c == ',' && !open.empty() && open.back().object && ++open.back().commas >= key_limit) {
      refuse("has an object of more than", key_limit, "keys", i);
    }
  }
}

/// The UTF-16 unit of an escape \uXXXX that begins at `at`, or nothing.
std::optional<unsigned> escaped_unit(std::string_view text, std::size_t at) {
  constexpr std::size_t length = 6;
  if (text.size() - at < length || text[at] != '\\' || text[at + 1] != 'u') return std::nullopt;
  const std::string_view digits = text.substr(at + 2, 4);
  unsigned unit = 0;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), unit, 16);
  if (fault != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return unit;
}

/// Where the escapes of surrogates without their other half begin. Only strings have backslashes, so that
/// nothing but these needs looking at.
std::vector<std::size_t> lone_surrogates(std::string_view text) {
  const auto is_high = [](unsigned unit) { return unit >= 0xD800 && unit < 0xDC00; };
  const auto is_low = [](unsigned unit) { return unit >= 0xDC00 && unit < 0xE000; };
  std::vector<std::size_t> places;
  std::size_t at = text.find('\\');
  while (at < text.size()) {
    std::size_t length = 2;
    if (const std::optional<unsigned> unit = escaped_unit(text, at)) {
      length = 6;
      if (is_high(*unit)) {
        const std::optional<unsigned> next = escaped_unit(text, at + length);
        if (next && is_low(*next)) {
          length *= 2;
        } else {
          places.push_back(at);
        }
      } else if (is_low(*unit)) {
        places.push_back(at);
      }
    }
    at = text.find('\\', at + length);
  }
  return places;
}

/// The text with U+FFFD in place of such surrogates: no UTF-8 can hold them, and JavaScript programs send
/// them when they cut a string. Offsets stay as they are.
std::string without_lone_surrogates(std::string_view text, const std::vector<std::size_t>& places) {
  std::string mended(text);
  for (const std::size_t place : places) mended.replace(place, 6, "\\uFFFD");
  return mended;
}

template <class Value, class... Callback>
Value parse(std::string_view text, std::string_view where, Callback&&... callback) {
  if (const std::vector<std::size_t> places = lone_surrogates(text); !places.empty()) {
    return parse<Value>(without_lone_surrogates(text, places), where, std::forward<Callback>(callback)...);
  }
  try {
    return Value::parse(text, std::forward<Callback>(callback)...);
  } catch (const typename Value::parse_error& fault) {
    const bool empty = text.find_first_not_of(" \t\r\n") == std::string_view::npos;
    if (empty) throw Error(where, "is empty, not JSON");
    // The library counts bytes from 1.
    const std::size_t offset = std::min(fault.byte == 0 ? 0 : fault.byte - 1, text.size());
    throw Error(where, "is not valid JSON at " + place(text, offset));
  } catch (const typename Value::out_of_range&) {
    throw Error(where, "holds a number that no double can hold");
  }
}

std::string cut(std::string text, std::size_t limit) {
  if (text.size() <= limit) return text;
  const auto continues = [&](std::size_t i) {
    return (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U;
  };
  while (limit > 0 && continues(limit)) --limit;
  text.resize(limit);
  return text + "...";
}
}  // namespace

Json parse_json(std::string_view text, std::string_view where) {
  check_shape(text, where, json_key_limit);
  return parse<Json>(text, where);
}

nlohmann::json parse_json_unique(std::string_view text, std::string_view where) {
  check_shape(text, where, std::numeric_limits<int>::max());
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;  // of each object that is open
  return parse<nlohmann::json>(text, where, [&](int, Event event, nlohmann::json& parsed) {
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw Error(where, "names " + quote(parsed.get_ref<const std::string&>()) + " twice");
    }
    return true;
  });
}

std::string read_text_file(const std::filesystem::path& path) {
  const auto fail = [&](int reason) {
    throw Error(path.string(),
                "cannot be read: " + std::error_code(reason, std::generic_category()).message());
  };
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(errno != 0 ? errno : EIO);
  if (std::filesystem::is_directory(path)) fail(EISDIR);  // which opens, on Linux
  std::ostringstream content;
  content << in.rdbuf();
  if (in.bad()) fail(EIO);
  return std::move(content).str();
}

Json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path), path.string());
}

std::string quote(std::string_view text) {
  return cut(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace), 100);
}

std::string brief(const Json& value) {
  return cut(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
}

}  // namespace calla
