// Reads the JSON of a tokenizer.json in one pass: its two arrays of hundreds of thousands of entries go
// straight into vectors, and only the rest becomes a tree.
#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/tokenizer_file.h"

namespace calla {

struct TokenizerJson {
  nlohmann::json rest;  // the file without model.vocab and model.merges
  std::vector<TokenizerFile::Entry> vocabulary;
  std::vector<TokenizerFile::MergePair> merges;
};

/// Throws Error when the text is not JSON, or model.vocab or model.merges is missing or malformed.
TokenizerJson parse_tokenizer_json(std::string_view json, std::string_view where);

}  // namespace calla
