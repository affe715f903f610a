// The byte-level alphabet of GPT-2 tokenizers: a file writes each byte of a token as one printable character.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace calla {

/// The bytes that a token of a tokenizer file stands for ("Ġthe" is " the"), or nothing where a character is
/// not of the alphabet.
std::optional<std::string> bytes_from_byte_level(std::string_view token);

}  // namespace calla
