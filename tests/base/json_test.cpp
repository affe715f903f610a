#include "base/json.h"

#include <functional>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/support.h"

namespace calla {
namespace {

using test::message_of;

std::string fault_of(const std::string& text) {
  return message_of([&] { parse_json(text, "f"); });
}

TEST(Json, KeepsTheOrderOfKeys) { EXPECT_EQ(parse_json(R"({"b":1,"a":2})", "f").dump(), R"({"b":1,"a":2})"); }

TEST(Json, NamesThePlaceOfAFault) {
  EXPECT_EQ(fault_of("{\"a\": 1,\n  \"b\": x}"), "f: is not valid JSON at line 2, column 8");
  EXPECT_EQ(fault_of("{"), "f: is not valid JSON at line 1, column 2");
  EXPECT_EQ(fault_of("[1, 2] 3"), "f: is not valid JSON at line 1, column 8");
  EXPECT_EQ(fault_of("\n\n]"), "f: is not valid JSON at line 3, column 1");
}

TEST(Json, TellsAnEmptyTextAndTextThatIsNotUtf8) {
  EXPECT_EQ(fault_of(""), "f: is empty, not JSON");
  EXPECT_EQ(fault_of(" \r\n\t"), "f: is empty, not JSON");
  EXPECT_NE(fault_of("\"\xFF\"").find("is not valid JSON at line 1"), std::string::npos);
}

TEST(Json, ALoneSurrogateIsReadAsTheReplacementCharacter) {
  const auto read = [](const std::string& json) { return parse_json(json, "f").get<std::string>(); };
  EXPECT_EQ(read(R"("a\ud83d")"), "a\uFFFD");
  EXPECT_EQ(read(R"("\ud83dx\uDE00")"), "\uFFFDx\uFFFD");
  EXPECT_EQ(read(R"("\ud83d\ude00")"), "\U0001F600") << "a pair is one character";
  EXPECT_EQ(read(R"("\ud83d\ud83d\ude00")"), "\uFFFD\U0001F600");
  EXPECT_EQ(read(R"("\ude00\ud83d")"), "\uFFFD\uFFFD");
  EXPECT_EQ(read(R"("\\ud83d")"), R"(\ud83d)") << "an escaped backslash begins no escape";
  EXPECT_EQ(read(R"("\ud83d\n")"), "\uFFFD\n");
  EXPECT_EQ(fault_of(R"("\ud83)"), "f: is not valid JSON at line 1, column 7") << "as before";
  EXPECT_EQ(fault_of(R"(["\ud83d", x])"), "f: is not valid JSON at line 1, column 12")
      << "places stay as they are";
}

TEST(Json, RefusesANumberThatNoDoubleHolds) {
  EXPECT_EQ(fault_of("[1e999]"), "f: holds a number that no double can hold");
  EXPECT_EQ(fault_of("[-1e999]"), "f: holds a number that no double can hold");
}

TEST(Json, RefusesNestingBeyondTheLimitAtAnyDepth) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(fault_of(nested(json_depth_limit)), "no error");
  EXPECT_EQ(fault_of(nested(json_depth_limit + 1)),
            "f: is nested deeper than 200 levels at line 1, column 201");
  EXPECT_NE(fault_of(std::string(1'000'000, '[')).find("nested deeper"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 1000; ++i) objects += "{\"a\":";
  EXPECT_NE(fault_of(objects).find("nested deeper"), std::string::npos);
}

TEST(Json, RefusesAnObjectOfTooManyKeys) {
  const auto object = [](int keys) {
    std::string text = "{\"k0\":[0,0]";
    for (int i = 1; i < keys; ++i) text += fmt::format(",\"k{}\":0", i);
    return text + "}";
  };
  EXPECT_EQ(fault_of(object(json_key_limit)), "no error");
  EXPECT_NE(fault_of(object(json_key_limit + 1)).find("has an object of more than 10000 keys"),
            std::string::npos);
  EXPECT_EQ(message_of([&] { parse_json_unique(object(json_key_limit + 1), "f"); }), "no error")
      << "sorted keys are found quickly";
  std::string array = "[0";
  for (int i = 0; i < 2 * json_key_limit; ++i) array += ",0";
  EXPECT_EQ(fault_of(array + "]"), "no error") << "an array may be long";
}

TEST(Json, CountsNoBracketsInsideStrings) {
  EXPECT_EQ(fault_of("[\"" + std::string(300, '[') + "\"]"), "no error");
  EXPECT_EQ(fault_of(R"(["\"[", "\\"])"), "no error");
  EXPECT_NE(fault_of(R"(["\\", )" + std::string(300, '[')).find("nested deeper"), std::string::npos);
}

TEST(Json, UniqueRefusesAKeyTwiceInOneObjectOnly) {
  const auto fault = [](const std::string& text) {
    return message_of([&] { parse_json_unique(text, "f"); });
  };
  EXPECT_EQ(fault(R"({"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]})"), "no error");
  EXPECT_EQ(fault(R"({"a":1,"b":2,"a":3})"), "f: names \"a\" twice");
  EXPECT_EQ(fault(R"({"x":[{"b":1,"\u0062":2}]})"), "f: names \"b\" twice")
      << "the same key, spelled another way";
  EXPECT_EQ(fault("{"), "f: is not valid JSON at line 1, column 2");
}

TEST(Json, ReadsAFileAndNamesItInFaults) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "f.json";
  test::write_file(path, "[1]");
  EXPECT_EQ(read_json_file(path).dump(), "[1]");
  test::write_file(path, "[1");
  EXPECT_EQ(message_of([&] { read_json_file(path); }),
            path.string() + ": is not valid JSON at line 1, column 3");
  test::write_file(path, "");
  EXPECT_EQ(read_text_file(path), "");
}

TEST(Json, TellsWhyAFileCannotBeRead) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path().string();
  EXPECT_EQ(message_of([&] { read_text_file(path + "/none"); }),
            path + "/none: cannot be read: No such file or directory");
  EXPECT_EQ(message_of([&] { read_text_file(path); }), path + ": cannot be read: Is a directory");
}

TEST(Json, QuotesAndCutsForOneLine) {
  EXPECT_EQ(quote("a\nb\"c"), R"("a\nb\"c")");
  EXPECT_EQ(quote("\xFF"), "\"\uFFFD\"");
  EXPECT_EQ(quote(std::string(500, 'x')).size(), 103U);
  EXPECT_EQ(brief(Json(4096)), "4096");
  const std::string brief_text = brief(Json(std::string(58, 'x') + "éé"));
  EXPECT_EQ(brief_text.substr(1), std::string(58, 'x') + "...") << "no half of a code point";
}

}  // namespace
}  // namespace calla
