// JSON as the project uses it: object keys keep the order of the text, and a syntax fault names the place.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace calla {

using Json = nlohmann::ordered_json;

/// Arrays and objects may be nested this deep: writing and copying a value recurse, and the stack has an end.
inline constexpr int json_depth_limit = 200;

/// An object may have this many keys: one that keeps their order looks through all of them for each.
inline constexpr int json_key_limit = 10'000;

/// Parses a whole text. `where` names its origin in the message of the Error thrown when it is not JSON, not
/// UTF-8, nested too deep, or has an object of too many keys. The escape of a surrogate without its other
/// half ("\ud83d") is read as U+FFFD.
Json parse_json(std::string_view text, std::string_view where);

/// As parse_json, but an object that names a key twice is an Error too (parse_json keeps the last), and
/// objects are sorted by key, so that one with very many keys is no slower for it.
nlohmann::json parse_json_unique(std::string_view text, std::string_view where);

/// Reads and parses a file; throws Error when it cannot be read or is not JSON.
Json read_json_file(const std::filesystem::path& path);

/// The whole content of a file; throws Error when it cannot be read.
std::string read_text_file(const std::filesystem::path& path);

/// The text as a JSON string, quotes and escapes included, cut short beyond 100 bytes: a name that came from
/// a file, fit for a message of one line.
std::string quote(std::string_view text);

/// The value as JSON text, cut short beyond 60 bytes, for a message of one line.
std::string brief(const Json& value);

}  // namespace calla
