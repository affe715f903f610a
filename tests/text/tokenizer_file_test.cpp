#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "text/tiny_tokenizer.h"
#include "text/tokenizer.h"

namespace calla {
namespace {
using test::tiny_added_token;
using test::tiny_tokenizer;

std::string fault_of(std::string_view text) {
  try {
    Tokenizer::parse(text, "tiny.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

struct Refusal {
  std::string name;
  std::function<void(Json&)> change;
  std::vector<std::string> message;  // parts of it
};

std::ostream& operator<<(std::ostream& out, const Refusal& refusal) { return out << refusal.name; }

Json& split(Json& file) { return file["pre_tokenizer"]["pretokenizers"][0]; }
Json& byte_level(Json& file) { return file["pre_tokenizer"]["pretokenizers"][1]; }
Json& added(Json& file) { return file["added_tokens"][1]; }

class TokenizerFileRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(TokenizerFileRefusal, NamesFileAndFieldAndWhatIsExpected) {
  Json file = tiny_tokenizer();
  GetParam().change(file);
  const std::string fault = fault_of(file.dump());
  EXPECT_TRUE(fault.starts_with("tiny.json: ")) << fault;
  for (const std::string& part : GetParam().message)
    EXPECT_NE(fault.find(part), std::string::npos) << part << "\n" << fault;
}

// clang-format off
const std::vector<Refusal> refusals{
    {"Truncation", [](Json& f) { f["truncation"]["max_length"] = 512; }, {"truncation", "expected null"}},
    {"Padding", [](Json& f) { f["padding"]["strategy"] = "BatchLongest"; }, {"padding", "expected null"}},
    {"NoNormalizer", [](Json& f) { f.erase("normalizer"); }, {"normalizer: is missing"}},
    {"NullNormalizer", [](Json& f) { f["normalizer"] = nullptr; }, {"normalizer.type"}},
    {"OtherNormalizer", [](Json& f) { f["normalizer"]["type"] = "NFKC"; }, {"normalizer.type: is \"NFKC\"", "expected \"NFC\""}},
    {"NoPreTokenizer", [](Json& f) { f["pre_tokenizer"] = nullptr; }, {"pre_tokenizer.type"}},
    {"OtherPreTokenizer", [](Json& f) { f["pre_tokenizer"]["type"] = "Metaspace"; }, {"pre_tokenizer.type", "expected \"Sequence\""}},
    {"NoSteps", [](Json& f) { f["pre_tokenizer"].erase("pretokenizers"); }, {"pre_tokenizer.pretokenizers: is missing"}},
    {"StepsOfWrongType", [](Json& f) { f["pre_tokenizer"]["pretokenizers"] = 2; }, {"pre_tokenizer.pretokenizers: is 2", "expected an array"}},
    {"FurtherStep", [](Json& f) { f["pre_tokenizer"]["pretokenizers"].push_back(byte_level(f)); }, {"pre_tokenizer.pretokenizers", "expected Split and ByteLevel"}},
    {"OtherFirstStep", [](Json& f) { split(f)["type"] = "Digits"; }, {"pretokenizers[0].type", "expected \"Split\""}},
    {"OtherSecondStep", [](Json& f) { byte_level(f)["type"] = "Digits"; }, {"pretokenizers[1].type", "expected \"ByteLevel\""}},
    {"Removed", [](Json& f) { split(f)["behavior"] = "Removed"; }, {"pretokenizers[0].behavior", "expected \"Isolated\""}},
    {"Inverted", [](Json& f) { split(f)["invert"] = true; }, {"pretokenizers[0].invert", "expected false"}},
    {"LiteralPattern", [](Json& f) { split(f)["pattern"] = {{"String", " "}}; }, {"pretokenizers[0].pattern.Regex: is missing"}},
    {"EmptyRegex", [](Json& f) { split(f)["pattern"]["Regex"] = ""; }, {"pattern.Regex", "expected a text"}},
    {"RegexOfWrongType", [](Json& f) { split(f)["pattern"]["Regex"] = 1; }, {"pattern.Regex", "expected a text"}},
    {"BadRegex", [](Json& f) { split(f)["pattern"]["Regex"] = "a(b"; }, {"pattern.Regex: is not a regular expression", "parenthesis"}},
    {"EndlessRegex", [](Json& f) { split(f)["pattern"]["Regex"] = std::string(10'000, 'a'); }, {"pattern.Regex: has 10000 bytes", "at most"}},
    {"PrefixSpace", [](Json& f) { byte_level(f)["add_prefix_space"] = true; }, {"pretokenizers[1].add_prefix_space: is true", "expected false"}},
    {"SecondRegex", [](Json& f) { byte_level(f)["use_regex"] = true; }, {"pretokenizers[1].use_regex: is true", "expected false"}},
    {"SecondRegexByDefault", [](Json& f) { byte_level(f).erase("use_regex"); }, {"pretokenizers[1].use_regex: is missing"}},
    {"TemplatePostProcessor", [](Json& f) { f["post_processor"] = {{"type", "TemplateProcessing"}}; }, {"post_processor.type", "expected \"ByteLevel\""}},
    {"OtherDecoder", [](Json& f) { f["decoder"] = {{"type", "WordPiece"}}; }, {"decoder.type", "expected \"ByteLevel\""}},
    {"OtherModel", [](Json& f) { f["model"]["type"] = "Unigram"; }, {"model.type", "expected \"BPE\""}},
    {"NoModel", [](Json& f) { f.erase("model"); }, {"model.vocab: is missing"}},
    {"Dropout", [](Json& f) { f["model"]["dropout"] = 0.1; }, {"model.dropout: is 0.1", "expected 0.0"}},
    {"UnknownToken", [](Json& f) { f["model"]["unk_token"] = "<unk>"; }, {"model.unk_token: is \"<unk>\"", "expected null"}},
    {"SubwordPrefix", [](Json& f) { f["model"]["continuing_subword_prefix"] = "##"; }, {"model.continuing_subword_prefix", "expected \"\""}},
    {"WordSuffix", [](Json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, {"model.end_of_word_suffix", "expected \"\""}},
    {"ByteFallback", [](Json& f) { f["model"]["byte_fallback"] = true; }, {"model.byte_fallback: is true", "expected false"}},
    {"IgnoreMerges", [](Json& f) { f["model"]["ignore_merges"] = true; }, {"model.ignore_merges: is true", "expected false"}},

    {"NoAddedTokens", [](Json& f) { f.erase("added_tokens"); }, {"added_tokens: is missing"}},
    {"AddedTokensOfWrongType", [](Json& f) { f["added_tokens"] = Json::object(); }, {"added_tokens", "expected an array"}},
    {"AddedTokenOfWrongType", [](Json& f) { added(f) = "<think>"; }, {"added_tokens[1].single_word: is missing"}},
    {"StripsLeft", [](Json& f) { added(f)["lstrip"] = true; }, {"added_tokens[1].lstrip: is true", "expected false"}},
    {"StripsRight", [](Json& f) { added(f)["rstrip"] = true; }, {"added_tokens[1].rstrip: is true", "expected false"}},
    {"SingleWord", [](Json& f) { added(f)["single_word"] = true; }, {"added_tokens[1].single_word: is true", "expected false"}},
    {"Normalized", [](Json& f) { added(f)["normalized"] = true; }, {"added_tokens[1].normalized: is true", "expected false"}},
    {"NormalizedMissing", [](Json& f) { added(f).erase("normalized"); }, {"added_tokens[1].normalized: is missing"}},
    {"SpecialOfWrongType", [](Json& f) { added(f)["special"] = 1; }, {"added_tokens[1].special: is 1", "expected true or false"}},
    {"EmptyContent", [](Json& f) { added(f)["content"] = ""; }, {"added_tokens[1].content", "expected a text"}},
    {"NegativeAddedId", [](Json& f) { added(f)["id"] = -1; }, {"added_tokens[1].id: is -1", "expected a whole number below"}},
    {"HugeAddedId", [](Json& f) { added(f)["id"] = 4'000'000'000U; }, {"added_tokens[1].id: is 4000000000", "expected a whole number below"}},
    {"AddedIdTwice", [](Json& f) { added(f)["id"] = 300; }, {"added_tokens[1].id: is 300", "another token's"}},
    {"AddedIdOfVocabulary", [](Json& f) { added(f)["id"] = 65; }, {"added_tokens[1].id: is 65", "another token's"}},
    {"ContentTwice", [](Json& f) { added(f)["content"] = "<|end|>"; }, {"added_tokens[1].content: is \"<|end|>\""}},

    {"NoVocabulary", [](Json& f) { f["model"].erase("vocab"); }, {"model.vocab: is missing"}},
    {"VocabularyOfWrongType", [](Json& f) { f["model"]["vocab"] = Json::array(); }, {"model.vocab: is missing", "expected an object"}},
    {"TextId", [](Json& f) { f["model"]["vocab"]["ab"] = "256"; }, {"model.vocab[\"ab\"]", "expected a whole number below"}},
    {"NegativeId", [](Json& f) { f["model"]["vocab"]["ab"] = -256; }, {"model.vocab[\"ab\"]", "expected a whole number below"}},
    {"FractionalId", [](Json& f) { f["model"]["vocab"]["ab"] = 256.5; }, {"model.vocab[\"ab\"]", "expected a whole number below"}},
    {"HugeId", [](Json& f) { f["model"]["vocab"]["ab"] = 2'000'000'000; }, {"model.vocab[\"ab\"]", "expected a whole number below"}},
    {"ObjectId", [](Json& f) { f["model"]["vocab"]["ab"] = Json::object(); }, {"model.vocab[\"ab\"]", "expected a whole number below"}},
    {"ArrayId", [](Json& f) { f["model"]["vocab"]["ab"] = Json::array(); }, {"model.vocab[\"ab\"]", "expected a whole number below"}},
    {"IdTwice", [](Json& f) { f["model"]["vocab"]["abc"] = 256; }, {"model.vocab", "gives the id 256 to two tokens"}},
    {"OtherAlphabet", [](Json& f) { f["model"]["vocab"]["a b"] = 270; }, {"model.vocab", "\"a b\"", "byte-level alphabet"}},
    {"EmptyToken", [](Json& f) { f["model"]["vocab"][""] = 270; }, {"model.vocab", "byte-level alphabet"}},
    {"MissingByte", [](Json& f) { f["model"]["vocab"].erase("z"); }, {"model.vocab", "0x7A", "expected all 256"}},

    {"NoMerges", [](Json& f) { f["model"].erase("merges"); }, {"model.merges: is missing"}},
    {"MergesOfWrongType", [](Json& f) { f["model"]["merges"] = "a b"; }, {"model.merges: is missing", "expected an array"}},
    {"MergeOfUnknownLeft", [](Json& f) { f["model"]["merges"].push_back("xy z"); }, {"model.merges[4]", "\"xy\"", "model.vocab"}},
    {"MergeOfUnknownRight", [](Json& f) { f["model"]["merges"].push_back("x yz"); }, {"model.merges[4]", "\"yz\"", "model.vocab"}},
    {"MergeToUnknown", [](Json& f) { f["model"]["merges"].push_back("x y"); }, {"model.merges[4]", "\"x\" and \"y\"", "model.vocab"}},
    {"MergeTwice", [](Json& f) { f["model"]["merges"].push_back("a b"); }, {"model.merges[4]", "earlier"}},
    {"MergeOfOne", [](Json& f) { f["model"]["merges"].push_back("ab"); }, {"model.merges[4]", "expected \"left right\""}},
    {"MergeOfThree", [](Json& f) { f["model"]["merges"].push_back("a b c"); }, {"model.merges", "byte-level alphabet"}},
    {"MergeOfNothing", [](Json& f) { f["model"]["merges"].push_back(" a"); }, {"model.merges", "byte-level alphabet"}},
    {"MergeNumber", [](Json& f) { f["model"]["merges"].push_back(1); }, {"model.merges[4]", "expected \"left right\""}},
    {"MergeObject", [](Json& f) { f["model"]["merges"].push_back(Json::object()); }, {"model.merges[4]", "expected \"left right\""}},
    {"PairOfOne", [](Json& f) { f["model"]["merges"].push_back({"a"}); }, {"model.merges[4]", "expected \"left right\""}},
    {"PairOfThree", [](Json& f) { f["model"]["merges"].push_back({"a", "b", "c"}); }, {"model.merges[4]", "expected \"left right\""}},
    {"PairOfNumbers", [](Json& f) { f["model"]["merges"].push_back({1, 2}); }, {"model.merges[4]", "expected \"left right\""}},
    {"PairOfPairs", [](Json& f) { f["model"]["merges"].push_back({Json::array(), Json::array()}); }, {"model.merges[4]", "expected \"left right\""}},
};
// clang-format on

INSTANTIATE_TEST_SUITE_P(Fields, TokenizerFileRefusal, testing::ValuesIn(refusals),
                         [](const auto& refusal) { return refusal.param.name; });

TEST(TokenizerFile, TheTinyFileItselfIsAccepted) { EXPECT_EQ(fault_of(tiny_tokenizer().dump()), "no error"); }

TEST(TokenizerFile, WhatChangesNothingIsAccepted) {
  Json file = tiny_tokenizer();
  file["post_processor"] = nullptr;
  file["decoder"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  byte_level(file)["trim_offsets"] = true;
  file["model"]["continuing_subword_prefix"] = "";
  file["model"]["end_of_word_suffix"] = "";
  file["model"]["dropout"] = 0.0;
  file["model"].erase("ignore_merges");
  file.erase("padding");
  EXPECT_EQ(fault_of(file.dump()), "no error");
}

TEST(TokenizerFile, ATokenOrAFieldGivenTwiceIsRefused) {
  std::string text = tiny_tokenizer().dump();
  const auto with = [&](std::string_view inserted, std::string_view before) {
    std::string changed = text;
    return changed.insert(changed.find(before), inserted);
  };
  EXPECT_NE(fault_of(with(R"("ab":290,)", R"("ab":256)")).find("has the token \"ab\" twice"),
            std::string::npos);
  EXPECT_NE(fault_of(with(R"("vocab":{},)", R"("vocab":)")).find("model.vocab: is there twice"),
            std::string::npos);
  EXPECT_NE(fault_of(with(R"("merges":[],)", R"("merges":)")).find("model.merges: is there twice"),
            std::string::npos);
}

TEST(TokenizerFile, EveryCutOfTheFileIsAnError) {
  const std::string text = tiny_tokenizer().dump();
  for (std::size_t length = 0; length < text.size(); length += 7) {
    EXPECT_NE(fault_of(std::string_view(text).substr(0, length)).find("is not valid JSON at byte"),
              std::string::npos)
        << length;
  }
}

TEST(TokenizerFile, WhatIsNoTokenizerIsAnError) {
  for (const char* text :
       {"", "null", "[]", "{}", "17", "\"model\"", R"([{"model":{"vocab":{},"merges":[]}}])",
        R"({"model":[{"vocab":{},"merges":[]}]})", R"({"model":{"vocab":{},"merges":[]}})", "\xFF"}) {
    EXPECT_TRUE(fault_of(text).starts_with("tiny.json: ")) << text;
  }
  EXPECT_NE(fault_of(std::string(100'000, '[')).find("nested"), std::string::npos);
}

TEST(TokenizerFile, AMissingFileIsNamed) {
  try {
    Tokenizer::load("/nowhere/at/all");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find("/nowhere/at/all/tokenizer.json"), std::string_view::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace calla
