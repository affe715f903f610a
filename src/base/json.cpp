#include "base/json.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"

namespace calla {

Json parse_json(std::string_view text, std::string_view where) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& fault) {
    // The library counts bytes from 1; a person looks for a line and a column.
    const std::size_t at = std::min(fault.byte == 0 ? 0 : fault.byte - 1, text.size());
    const std::string_view before = text.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const auto column = at - (before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1) + 1;
    const bool empty = text.find_first_not_of(" \t\r\n") == std::string_view::npos;
    throw Error(where, empty ? "is empty, not JSON" : fmt::format("is not valid JSON at line {}, column {}", line, column));
  }
}

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path)) {
    const std::error_code reason(errno != 0 ? errno : EISDIR, std::generic_category());
    throw Error(path.string(), "cannot be read: " + reason.message());
  }
  std::ostringstream content;
  content << in.rdbuf();
  return std::move(content).str();
}

Json read_json_file(const std::filesystem::path& path) { return parse_json(read_text_file(path), path.string()); }

}  // namespace calla
