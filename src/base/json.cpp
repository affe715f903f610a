#include "base/json.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
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

void check_depth(std::string_view text, std::string_view where) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > json_depth_limit) {
        throw Error(where,
                    fmt::format("is nested deeper than {} levels at {}", json_depth_limit, place(text, i)));
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

template <class Value, class... Callback>
Value parse(std::string_view text, std::string_view where, Callback&&... callback) {
  check_depth(text, where);
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

Json parse_json(std::string_view text, std::string_view where) { return parse<Json>(text, where); }

nlohmann::json parse_json_unique(std::string_view text, std::string_view where) {
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
