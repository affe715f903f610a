#include "text/python_text.h"

#include <limits>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace calla {
namespace {

TEST(PythonText, StripsEveryUnicodeSpaceAtBothEnds) {
  for (const char* space :
       {"\t",     "\n",     "\v",     "\f",     "\r",     "\x1C",   "\x1D",   "\x1E",   "\x1F",   " ",
        "\u0085", "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
        "\u2007", "\u2008", "\u2009", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"}) {
    EXPECT_EQ(python_strip(fmt::format("{0}{0}a{0}b{0}", space)), fmt::format("a{0}b", space));
    EXPECT_EQ(python_strip(fmt::format("{0}{0}", space)), "");
  }
}

TEST(PythonText, KeepsWhatOnlyLooksLikeSpace) {
  for (const char* text : {"\u200B", "\u180E", "\u2060", "\uFEFF", "\u0084", "\u200B", "\u00A1", "\u2027",
                           "é", "\x1B", "\x7F", "😀"}) {
    EXPECT_EQ(python_strip(text), text);
  }
  EXPECT_EQ(python_strip(""), "");
  EXPECT_EQ(python_strip("\xC2"), "\xC2") << "half a code point";
}

TEST(PythonText, StripsNewlinesOnly) {
  EXPECT_EQ(strip_leading_newlines("\n\n a\n"), " a\n");
  EXPECT_EQ(strip_trailing_newlines("\na \n\n"), "\na ");
  EXPECT_EQ(strip_leading_newlines("\n\n"), "");
  EXPECT_EQ(strip_trailing_newlines("\n\n"), "");
  EXPECT_EQ(strip_leading_newlines(""), "");
  EXPECT_EQ(strip_trailing_newlines(""), "");
}

TEST(PythonText, WritesJsonWithPythonsSeparatorsAndOrder) {
  EXPECT_EQ(python_json(Json::parse(R"({"b":[1,-2,[]],"a":{"x":null,"y":true,"z":false},"e":{}})")),
            R"({"b": [1, -2, []], "a": {"x": null, "y": true, "z": false}, "e": {}})");
  EXPECT_EQ(python_json(Json::parse("18446744073709551615")), "18446744073709551615");
}

TEST(PythonText, EscapesOnlyWhatJsonRequires) {
  EXPECT_EQ(python_json(Json("查 <b> & / ' \x7F \u2028")), "\"查 <b> & / ' \x7F \u2028\"");
  EXPECT_EQ(python_json(Json("\"\\\n\r\t\b\f")), R"("\"\\\n\r\t\b\f")");
  EXPECT_EQ(python_json(Json(std::string("\0\x01\x1F\v", 4))), R"("\u0000\u0001\u001f\u000b")");
  EXPECT_EQ(python_json(Json::parse(R"({"a\"b":1})")), R"({"a\"b": 1})");
}

// The right side is what Python 3 prints.
TEST(PythonText, WritesFloatsAsReprDoes) {
  const std::pair<double, const char*> cases[] = {{1.0, "1.0"},
                                                  {-0.0, "-0.0"},
                                                  {0.1, "0.1"},
                                                  {1.5, "1.5"},
                                                  {123456.7, "123456.7"},
                                                  {0.0001, "0.0001"},
                                                  {0.00001, "1e-05"},
                                                  {0.00012345, "0.00012345"},
                                                  {9.999999999999999e-05, "9.999999999999999e-05"},
                                                  {1e15, "1000000000000000.0"},
                                                  {9007199254740993.0, "9007199254740992.0"},
                                                  {9999999999999998.0, "9999999999999998.0"},
                                                  {1e16, "1e+16"},
                                                  {1.2345678901234568e+29, "1.2345678901234568e+29"},
                                                  {-2.5e-300, "-2.5e-300"},
                                                  {5e-324, "5e-324"},
                                                  {1.7976931348623157e308, "1.7976931348623157e+308"},
                                                  {1.0 / 3.0, "0.3333333333333333"},
                                                  {std::numeric_limits<double>::infinity(), "Infinity"},
                                                  {-std::numeric_limits<double>::infinity(), "-Infinity"},
                                                  {std::numeric_limits<double>::quiet_NaN(), "NaN"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(python_json(Json(value)), text);
}

TEST(PythonText, BoundsTheNesting) {
  const auto nested = [](std::size_t levels) {
    return Json::parse(std::string(levels, '[') + std::string(levels, ']'));
  };
  EXPECT_FALSE(json_nests_too_deeply(Json(1)));
  EXPECT_FALSE(json_nests_too_deeply(nested(256)));
  EXPECT_TRUE(json_nests_too_deeply(nested(257)));
  EXPECT_TRUE(json_nests_too_deeply(nested(300000))) << "and does not run out of stack";
}

}  // namespace
}  // namespace calla
