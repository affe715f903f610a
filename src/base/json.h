// JSON as the project uses it: object keys keep the order of the text, and a syntax fault names the place.
#pragma once
#include <filesystem>
#include <string_view>

#include <nlohmann/json.hpp>

namespace calla {

using Json = nlohmann::ordered_json;

/// Parses a whole text. `where` names its origin in the message of the Error thrown when it is not JSON or not UTF-8.
Json parse_json(std::string_view text, std::string_view where);

/// Reads and parses a file; throws Error when it cannot be read or is not JSON.
Json read_json_file(const std::filesystem::path& path);

/// The whole content of a file; throws Error when it cannot be read.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace calla
