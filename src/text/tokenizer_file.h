// The content of a tokenizer.json, Hugging Face's form, as far as this model's kind of tokenizer has it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "text/added_tokens.h"

namespace calla {

struct TokenizerFile {
  struct Entry {
    std::string bytes;
    Token id = 0;  // in [0, Vocabulary::id_limit)
  };
  struct MergePair {
    std::string left;  // bytes
    std::string right;
  };
  std::vector<Entry> vocabulary;
  std::vector<MergePair> merges;  // by rank
  std::vector<AddedToken> added_tokens;
  std::string split_regex;
};

/// Reads a tokenizer.json. Throws Error, with `where` and the field, when it is not one, or asks for anything
/// that would change this model's tokens: NFC, one isolating Split by a regex, ByteLevel, and plain BPE are
/// all there may be. Whether tokens, ids and merges fit together is for the reader of the result to check.
TokenizerFile parse_tokenizer_file(std::string_view json, std::string_view where);

/// "WHERE: field", the place of a fault.
std::string field_of(std::string_view where, std::string_view field);

}  // namespace calla
