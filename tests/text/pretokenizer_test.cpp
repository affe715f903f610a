#include "text/pretokenizer.h"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace calla {
namespace {
using Parts = std::vector<std::string>;

Parts pieces(std::string_view regex, std::string_view text) {
  const Pretokenizer pretokenizer(regex, "regex");
  Pretokenizer::Pieces remaining(pretokenizer, text);
  Parts found;
  while (const auto piece = remaining.next()) found.emplace_back(*piece);
  EXPECT_EQ(remaining.next(), std::nullopt);
  return found;
}

TEST(Pretokenizer, MatchesAndWhatLiesBetweenThemArePieces) {
  EXPECT_EQ(pieces("[a-z]+", "ab12cd"), (Parts{"ab", "12", "cd"}));
  EXPECT_EQ(pieces("[a-z]+", "12ab34"), (Parts{"12", "ab", "34"}));
  EXPECT_EQ(pieces("[a-z]", "ab"), (Parts{"a", "b"}));
  EXPECT_EQ(pieces("x", "abc"), Parts{"abc"});
  EXPECT_EQ(pieces("x", ""), Parts{});
  EXPECT_EQ(pieces("(?<=a)b", "abb"), (Parts{"a", "b", "b"}));
}

TEST(Pretokenizer, AnEmptyMatchSplitsAndGoesOn) {
  EXPECT_EQ(pieces("x*", "abxxc"), (Parts{"a", "b", "xx", "c"}));
  EXPECT_EQ(pieces("", "ab\u00e9\U0001F600"), (Parts{"a", "b", "\u00e9", "\U0001F600"}));
  EXPECT_EQ(pieces("x*", ""), Parts{});
  EXPECT_EQ(pieces("\\b", "ab cd"), (Parts{"ab", " ", "cd"}));
}

TEST(Pretokenizer, WhiteSpaceIsUnicodesOutsideAndInsideClasses) {
  const std::vector<std::string> spaces{"\t",     "\n",     "\v",     "\f",     "\r",     " ",
                                        "\u0085", "\u00a0", "\u1680", "\u2000", "\u200a", "\u2028",
                                        "\u2029", "\u202f", "\u205f", "\u3000"};
  // U+180E was white space until Unicode 6.3; U+001C to U+001F are separators to some; the rest only look
  // like it.
  const std::vector<std::string> others{"\u180e", "\x1C", "\x1F", "\u200b", "\u2060", "\ufeff", "x"};
  const auto check = [](const std::string& character, bool is_space) {
    const std::string text = std::string("a").append(character).append("b");
    const Parts split{"a", character, "b"};
    const Parts whole{text};
    EXPECT_EQ(pieces("\\s", text), is_space ? split : whole);
    EXPECT_EQ(pieces("[\\s]", text), is_space ? split : whole);
    EXPECT_EQ(pieces("[^\\S]", text), is_space ? split : whole);
    EXPECT_EQ(pieces("\\S+", text), is_space ? split : whole);
    EXPECT_EQ(pieces("[^\\s]+", text), is_space ? split : whole);
    EXPECT_EQ(pieces("[\\S]+", text), is_space ? split : whole);
  };
  for (const std::string& space : spaces) check(space, true);
  for (const std::string& other : others) check(other, false);
}

TEST(Pretokenizer, AnEscapedBackslashBeforeSIsNoClass) {
  EXPECT_EQ(pieces(R"(\\s)", R"(a\s b)"), (Parts{"a", R"(\s)", " b"}));
  EXPECT_EQ(pieces(R"(\\\s)", R"(a\ b)"), (Parts{"a", R"(\ )", "b"}));
}

TEST(Pretokenizer, WhatIsNoRegexIsAnErrorWithItsPlace) {
  for (const char* regex : {"(", "[a", "a{2,1}", "*", "\\", "\\p{Nonsense}", "(?<n>a)(?<n>b)", "\\C"}) {
    try {
      const Pretokenizer pretokenizer(regex, "the place");
      ADD_FAILURE() << regex;
    } catch (const Error& error) {
      EXPECT_TRUE(std::string_view(error.what()).starts_with("the place: is not a regular expression"))
          << error.what();
    }
  }
}

TEST(Pretokenizer, ARegexThatNeverEndsIsAnError) {
  EXPECT_THROW(pieces("(a+)+$", std::string(60, 'a') + "b"), Error);
}

TEST(Pretokenizer, ADeepMatchNeedsNoStack) {
  // More than the compiled regex has a stack for.
  const std::string text = std::string(200'000, 'a') + "b";
  EXPECT_EQ(pieces("(?:a|c(?=d))*b", text), Parts{text});
}

TEST(Pretokenizer, MatchMayMoveItsOwnBeginning) {
  EXPECT_EQ(pieces("a\\Kb", "abab"), (Parts{"a", "b", "a", "b"}));
}

}  // namespace
}  // namespace calla
