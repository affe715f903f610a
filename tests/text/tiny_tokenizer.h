// A tokenizer.json made by hand, for the tests of its reader: the 256 single bytes, a few merges, three
// control tokens.
#pragma once
#include <string>
#include <string_view>

#include "base/json.h"

namespace calla::test {

/// The character of the byte-level alphabet for a byte.
inline std::string byte_level(unsigned char byte) {
  const auto printable = [](unsigned b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  unsigned code_point = byte;
  if (!printable(byte)) {
    code_point = 256;
    for (unsigned lower = 0; lower < byte; ++lower) code_point += printable(lower) ? 0 : 1;
  }
  if (code_point < 128) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 63))};
}

inline Json tiny_added_token(int id, std::string_view content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

/// Token ids: the byte itself up to 255; 256 "ab", 257 "abc", 258 " a", 259 "cd", 260 "unreached" (which no
/// merge makes); 300 <|end|> (special), 301 <think>, 302 <|end|>x.
inline Json tiny_tokenizer() {
  Json file;
  file["version"] = "1.0";
  file["truncation"] = nullptr;
  file["padding"] = nullptr;
  file["added_tokens"] = {tiny_added_token(300, "<|end|>", true), tiny_added_token(301, "<think>", false),
                          tiny_added_token(302, "<|end|>x", false)};
  file["normalizer"]["type"] = "NFC";
  Json split = {{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}};
  split["pattern"]["Regex"] = R"( ?\p{L}+|\p{N}|\s+(?!\S)|\s+)";
  const Json byte_level_step = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  file["pre_tokenizer"]["type"] = "Sequence";
  file["pre_tokenizer"]["pretokenizers"] = Json::array({split, byte_level_step});
  file["post_processor"] = byte_level_step;
  file["decoder"] = byte_level_step;
  Json& model = file["model"];
  model = {{"type", "BPE"},     {"dropout", nullptr},     {"unk_token", nullptr},
           {"fuse_unk", false}, {"byte_fallback", false}, {"ignore_merges", false}};
  model["continuing_subword_prefix"] = nullptr;
  model["end_of_word_suffix"] = nullptr;
  Json& vocabulary = model["vocab"];
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_level(static_cast<unsigned char>(byte))] = byte;
  vocabulary["ab"] = 256;
  vocabulary["abc"] = 257;
  vocabulary["\u0120a"] = 258;
  vocabulary["cd"] = 259;
  vocabulary["unreached"] = 260;
  model["merges"] = Json::array({"a b", "c d", "ab c", "\u0120 a"});
  return file;
}

}  // namespace calla::test
