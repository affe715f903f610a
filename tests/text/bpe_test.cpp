#include "text/bpe.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace calla {
namespace {

// Bytes have their own value as id; further tokens are made by merges of pairs, in order of rank.
Bpe make_bpe(const std::vector<std::pair<std::string, std::string>>& pairs,
             const std::vector<std::string>& others = {}) {
  Vocabulary vocabulary(256 + pairs.size() + others.size());
  for (int byte = 0; byte < 256; ++byte) vocabulary.add(byte, std::string(1, static_cast<char>(byte)));
  MergeTable merges(pairs.size());
  for (const auto& [left, right] : pairs) {
    if (vocabulary.find(left + right) == Vocabulary::none) vocabulary.add(vocabulary.size(), left + right);
    EXPECT_TRUE(merges.insert(vocabulary.find(left), vocabulary.find(right), vocabulary.find(left + right)));
  }
  for (const std::string& other : others) vocabulary.add(vocabulary.size(), other);
  return {std::move(vocabulary), std::move(merges)};
}

std::vector<std::string> parts(const Bpe& bpe, std::string_view piece) {
  std::vector<Token> tokens;
  bpe.encode(piece, tokens);
  std::vector<std::string> texts;
  texts.reserve(tokens.size());
  for (const Token token : tokens) texts.emplace_back(bpe.vocabulary().bytes(token));
  return texts;
}

using Parts = std::vector<std::string>;

TEST(Vocabulary, FindsBytesByIdAndIdsByBytes) {
  Vocabulary vocabulary(3);
  vocabulary.add(7, "seven");
  vocabulary.add(2, "two");
  vocabulary.add(9, "a token of more than sixteen bytes");
  EXPECT_EQ(vocabulary.size(), 10);
  EXPECT_EQ(vocabulary.find("two"), 2);
  EXPECT_EQ(vocabulary.find("seven"), 7);
  EXPECT_EQ(vocabulary.find("a token of more than sixteen bytes"), 9);
  EXPECT_EQ(vocabulary.find("three"), Vocabulary::none);
  EXPECT_EQ(vocabulary.find(""), Vocabulary::none);
  EXPECT_EQ(vocabulary.bytes(7), "seven");
  for (const Token unused : {-1, 0, 3, 10, INT32_MAX, INT32_MIN})
    EXPECT_EQ(vocabulary.bytes(unused), "") << unused;
}

TEST(Vocabulary, HashesTellApartWhatDiffersInLengthOrInAnyByte) {
  EXPECT_NE(hash_bytes(std::string(1, '\0')), hash_bytes(std::string(2, '\0')));
  EXPECT_NE(hash_bytes(std::string(8, '\0')), hash_bytes(std::string(16, '\0')));
  const std::string text(40, 'x');
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = 'y';
    EXPECT_NE(hash_bytes(text), hash_bytes(other)) << i;
  }
}

TEST(MergeTable, KeepsTheFirstMergeOfAPair) {
  MergeTable merges(2);
  EXPECT_TRUE(merges.insert(1, 2, 3));
  EXPECT_FALSE(merges.insert(1, 2, 4));
  EXPECT_TRUE(merges.insert(2, 1, 5));
  EXPECT_EQ(merges.rank(1, 2), 0U);
  EXPECT_EQ(merges.rank(2, 1), 1U);
  EXPECT_EQ(merges.rank(0, 0), MergeTable::no_rank);
  EXPECT_EQ(merges.result(0), 3);
  EXPECT_EQ(merges.result(1), 5);
}

TEST(Bpe, JoinsTheLowestRankFirstAndTheLeftmostOfEqualOnes) {
  const Bpe bpe = make_bpe({{"b", "c"}, {"a", "b"}, {"a", "bc"}, {"a", "a"}});
  EXPECT_EQ(parts(bpe, "abc"), Parts{"abc"});
  EXPECT_EQ(parts(bpe, "abab"), (Parts{"ab", "ab"}));
  EXPECT_EQ(parts(bpe, "aaa"), (Parts{"aa", "a"}));
  EXPECT_EQ(parts(bpe, "x"), Parts{"x"});
  EXPECT_EQ(parts(bpe, ""), Parts{});
}

TEST(Bpe, AVocabularyEntryThatTheMergesDoNotReachIsNotUsed) {
  const Bpe bpe = make_bpe({{"a", "b"}, {"b", "c"}, {"a", "bc"}}, {"xyz"});
  EXPECT_EQ(parts(bpe, "xyz"), (Parts{"x", "y", "z"}));
  EXPECT_EQ(parts(bpe, "abc"), (Parts{"ab", "c"}));
  for (const char* text : {"xyz", "abc"})
    EXPECT_EQ(bpe.whole(text, hash_bytes(text)), Vocabulary::none) << text;
  EXPECT_EQ(bpe.whole("ab", hash_bytes("ab")), bpe.vocabulary().find("ab"));
}

// The definition, step by step.
Parts parts_by_definition(const std::vector<std::pair<std::string, std::string>>& pairs,
                          std::string_view piece) {
  Parts texts;
  for (const char byte : piece) texts.emplace_back(1, byte);
  for (;;) {
    std::size_t lowest = pairs.size();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < texts.size(); ++i) {
      const auto rank = static_cast<std::size_t>(
          std::find(pairs.begin(), pairs.end(), std::pair(texts[i], texts[i + 1])) - pairs.begin());
      if (rank < lowest) {
        lowest = rank;
        at = i;
      }
    }
    if (lowest == pairs.size()) return texts;
    texts[at] += texts[at + 1];
    texts.erase(texts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, AgreesWithTheDefinitionForPiecesOfAnyLength) {
  const std::vector<std::pair<std::string, std::string>> pairs{{"a", "b"},  {"b", "a"},    {"ab", "ab"},
                                                               {"c", "a"},  {"a", "a"},    {"ba", "c"},
                                                               {"aa", "b"}, {"abab", "c"}, {"b", "b"}};
  const Bpe bpe = make_bpe(pairs);
  std::mt19937 random(1);  // NOLINT(bugprone-random-generator-seed,cert-msc51-cpp): the same texts every time
  for (std::size_t length = 0; length < 120; ++length) {
    std::string piece;
    while (piece.size() < length) piece.push_back(static_cast<char>('a' + random() % 3));
    EXPECT_EQ(parts(bpe, piece), parts_by_definition(pairs, piece)) << piece;
  }
}

TEST(Bpe, AMegabyteWithoutABreakIsQuick) {
  const Bpe bpe = make_bpe({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}});
  std::vector<Token> tokens;
  bpe.encode(std::string(1'000'000, 'a'), tokens);
  EXPECT_EQ(tokens.size(), 125'000U);
}

TEST(PieceEncoder, RepeatsWhatItHasSeen) {
  const Bpe bpe = make_bpe({{"a", "b"}});
  const std::vector<std::string> pieces{"abx", "ab", "abx", "x", "abx", "yz", "abx", "yz"};
  // A memory of one piece and one of many must give the same.
  for (const std::size_t text_size : {0U, 100'000U}) {
    std::vector<Token> tokens;
    PieceEncoder encoder(bpe, tokens, text_size);
    for (const std::string& piece : pieces) encoder.encode(piece);
    std::vector<Token> expected;
    for (const std::string& piece : pieces) bpe.encode(piece, expected);
    EXPECT_EQ(tokens, expected);
  }
}

}  // namespace
}  // namespace calla
