#include "text/tool_schema.h"

#include <gtest/gtest.h>

namespace calla {
namespace {

ToolSet tool_with(const Json& parameters) {
  const std::vector<Json> tools{
      {{"type", "function"}, {"function", {{"name", "t"}, {"parameters", parameters}}}}};
  return ToolSet(tools);
}

/// The set of a tool "t" whose parameter "p" has the schema.
ToolSet schema(const char* json) {
  return tool_with({{"type", "object"}, {"properties", {{"p", Json::parse(json)}}}});
}

std::string converted(const char* json, std::string_view value) {
  return schema(json).convert("t", "p", value);
}
bool streams(const char* json) { return schema(json).is_plain_string("t", "p"); }

TEST(ToolSchema, ReadsBothFormsOfATool) {
  const std::vector<Json> tools{
      Json::parse(
          R"({"type": "function", "function": {"name": "a", "parameters": {"properties": {"n": {"type": "integer"}}}}})"),
      Json::parse(R"({"name": "b", "parameters": {"properties": {"n": {"type": "integer"}}}})"),
      Json::parse(R"({"type": "function", "function": {"name": "c"}})"),
  };
  const ToolSet set(tools);
  EXPECT_TRUE(set.declares("a") && set.declares("b") && set.declares("c"));
  EXPECT_FALSE(set.declares("d"));
  EXPECT_EQ(set.convert("a", "n", "7"), "7");
  EXPECT_EQ(set.convert("b", "n", "7"), "7");
  EXPECT_EQ(set.convert("c", "n", "7"), "\"7\"");
  EXPECT_EQ(set.convert("d", "n", "7"), "\"7\"");
  EXPECT_FALSE(set.is_plain_string("d", "n"));
  EXPECT_TRUE(ToolSet().empty());
}

TEST(ToolSchema, IgnoresWhatIsNoTool) {
  const std::vector<Json> tools{Json(),
                                Json(7),
                                Json::parse(R"({"function": {}})"),
                                Json::parse(R"({"name": 3})"),
                                Json::array(),
                                Json(""),
                                Json::parse(R"({"name": ""})"),
                                Json::parse(R"({"function": 1, "name": "x"})")};
  EXPECT_TRUE(ToolSet(tools).empty());
}

TEST(ToolSchema, IgnoresASchemaThatIsNone) {
  for (const char* parameters :
       {"null", "7", "[]", R"({"properties": 7})", R"({"properties": ["p"]})", R"({"properties": {"p": 7}})",
        R"({"properties": {"p": true}})", R"({"properties": {"p": {"type": 7}}})",
        R"({"properties": {"p": {"type": [7, "any"]}}})",
        R"({"properties": {"p": {"anyOf": {}, "enum": 3}}})", R"({"properties": {"p": {"$ref": 7}}})",
        R"({"properties": {"p": {"$ref": "#/nowhere"}}})", R"({"properties": {"p": {"$ref": "http://x/y"}}})",
        R"({"properties": {"p": {"$ref": "#x"}}})", R"({"properties": {"p": {"$ref": "#/properties/~2"}}})",
        R"({"$ref": "#"})"}) {
    const ToolSet set = tool_with(Json::parse(parameters));
    EXPECT_FALSE(set.is_plain_string("t", "p")) << parameters;
    EXPECT_EQ(set.convert("t", "p", "007"), "\"007\"") << parameters;
    EXPECT_EQ(set.convert("t", "p", "true"), "\"true\"") << parameters;
    EXPECT_EQ(set.convert("t", "p", "{\"b\": 1, \"a\": 2}"), "{\"b\": 1, \"a\": 2}") << parameters;
    EXPECT_EQ(set.convert("t", "p", "[1"), "\"[1\"") << parameters;
  }
}

TEST(ToolSchema, StreamsPlainStringsOnly) {
  EXPECT_TRUE(streams(R"({"type": "string"})"));
  EXPECT_TRUE(streams(R"({"type": ["string"]})"));
  EXPECT_TRUE(streams(R"({"anyOf": [{"type": "string", "minLength": 1}, {"type": "string"}]})"));
  EXPECT_FALSE(streams(R"({"type": ["string", "null"]})"));
  EXPECT_FALSE(streams(R"({"type": "string", "enum": ["a"]})"));
  EXPECT_FALSE(streams(R"({"type": "string", "const": "a"})"));
  EXPECT_FALSE(streams(R"({"anyOf": [{"type": "string"}, {"type": "array"}]})"));
  EXPECT_FALSE(streams("{}"));
  EXPECT_FALSE(schema(R"({"type": "string"})").is_plain_string("t", "other"));
}

TEST(ToolSchema, NeverConvertsAString) {
  for (const std::string_view value : {"007", "true", "null", "{\"a\": 1}", " 7 ", ""}) {
    EXPECT_EQ(converted(R"({"type": "string"})", value), json_string(value));
  }
}

TEST(ToolSchema, Integers) {
  const char* integer = R"({"type": "integer"})";
  EXPECT_EQ(converted(integer, " 5\n"), "5");
  EXPECT_EQ(converted(integer, "-0"), "-0");
  EXPECT_EQ(converted(integer, "5.0"), "5");
  EXPECT_EQ(converted(integer, "-12.000"), "-12");
  EXPECT_EQ(converted(integer, "123456789012345678901234567890"), "123456789012345678901234567890");
  for (const std::string_view other :
       {"5.5", "1e3", "+5", "007", "5.", ".5", "0x10", "5 6", "five", "", " ", "true", "NaN", "[5]"}) {
    EXPECT_EQ(converted(integer, other), json_string(other));
  }
}

TEST(ToolSchema, Numbers) {
  const char* number = R"({"type": "number"})";
  for (const std::string_view literal : {"5", "-0.25", "1e3", "2.50", "1E-7"})
    EXPECT_EQ(converted(number, literal), literal);
  for (const std::string_view other : {"1,5", "Infinity", "1e999", "--1", "1_000", "5%"}) {
    EXPECT_EQ(converted(number, other), json_string(other));
  }
  EXPECT_EQ(converted(R"({"type": ["integer", "number"]})", "5.0"), "5.0");
}

TEST(ToolSchema, Booleans) {
  const char* boolean = R"({"type": "boolean"})";
  for (const std::string_view yes : {"true", "True", "TRUE", "1", " true "})
    EXPECT_EQ(converted(boolean, yes), "true");
  for (const std::string_view no : {"false", "False", "0"}) EXPECT_EQ(converted(boolean, no), "false");
  for (const std::string_view other : {"yes", "2", "tru", "", "null"})
    EXPECT_EQ(converted(boolean, other), json_string(other));
  EXPECT_EQ(converted(R"({"type": ["boolean", "integer"]})", "1"), "1");
  EXPECT_EQ(converted(R"({"type": ["boolean", "integer"]})", "True"), "true");
}

TEST(ToolSchema, Null) {
  EXPECT_EQ(converted(R"({"type": ["integer", "null"]})", "null"), "null");
  EXPECT_EQ(converted(R"({"type": ["integer", "null"]})", "None"), "null");
  EXPECT_EQ(converted(R"({"type": "null"})", "nil"), "\"nil\"");
  EXPECT_EQ(converted(R"({"type": "integer"})", "null"), "\"null\"");
}

TEST(ToolSchema, ObjectsAndArraysStayAsTheyWereWritten) {
  EXPECT_EQ(converted(R"({"type": "object"})", " {\"z\": 1.50, \"a\": [12345678901234567890123]}\n"),
            "{\"z\": 1.50, \"a\": [12345678901234567890123]}");
  EXPECT_EQ(converted(R"({"type": "array"})", "[\"a\", \"b\"]"), "[\"a\", \"b\"]");
  EXPECT_EQ(converted(R"({"type": "array"})", "{}"), "\"{}\"");
  EXPECT_EQ(converted(R"({"type": "object"})", "[]"), "\"[]\"");
  EXPECT_EQ(converted(R"({"type": "object"})", "{'a': 1}"), "\"{'a': 1}\"");
  EXPECT_EQ(converted(R"({"type": "object"})", "{} {}"), "\"{} {}\"");
}

TEST(ToolSchema, WhatALenientParserWouldTakeStaysText) {
  using std::string_view_literals::operator""sv;
  EXPECT_EQ(converted("{}", "{}\0rest"sv), "\"{}\\u0000rest\"");
  EXPECT_EQ(converted("{}", "\xEF\xBB\xBF{}"), "\"\xEF\xBB\xBF{}\"");
  EXPECT_EQ(converted("{}", "{\"a\": 1e999}"), R"("{\"a\": 1e999}")");
  EXPECT_EQ(converted("{}", "[\"\xFF\"]"), "\"[\\\"\uFFFD\\\"]\"");
}

TEST(ToolSchema, DeepValuesStayText) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(converted("{}", nested(200)), nested(200));
  EXPECT_EQ(converted("{}", nested(201)), '"' + nested(201) + '"');
  EXPECT_EQ(converted("{}", nested(1000000)), '"' + nested(1000000) + '"');
  EXPECT_EQ(converted(R"({"enum": [[1]]})", nested(100000)), '"' + nested(100000) + '"');
  const std::string brackets_in_text = "[\"" + std::string(300, '[') + "\\\"" + "\"]";
  EXPECT_EQ(converted("{}", brackets_in_text), brackets_in_text);
}

TEST(ToolSchema, UnionsWithAString) {
  const char* open =
      R"({"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array", "items": {"type": "string"}}]})";
  EXPECT_EQ(converted(open, "null"), "null");
  EXPECT_EQ(converted(open, "None"), "\"None\"");
  EXPECT_EQ(converted(open, "[\"a\"]"), "[\"a\"]");
  EXPECT_EQ(converted(open, "{}"), "\"{}\"");
  EXPECT_EQ(converted(open, " a "), "\" a \"");
  EXPECT_EQ(converted(R"({"type": ["string", "integer"]})", "5"), "\"5\"");
}

TEST(ToolSchema, Enums) {
  const char* modes = R"({"type": "string", "enum": ["edit", "write", "\"quoted\"", "7"]})";
  EXPECT_EQ(converted(modes, "edit"), "\"edit\"");
  EXPECT_EQ(converted(modes, "\"edit\""), "\"edit\"");
  EXPECT_EQ(converted(modes, "\"quoted\""), R"("\"quoted\"")");
  EXPECT_EQ(converted(modes, "7"), "\"7\"");
  EXPECT_EQ(converted(modes, "\"other\""), R"("\"other\"")");
  const char* mixed = R"({"enum": [1, "two", true, null, [3]]})";
  EXPECT_EQ(converted(mixed, "1"), "1");
  EXPECT_EQ(converted(mixed, "two"), "\"two\"");
  EXPECT_EQ(converted(mixed, "true"), "true");
  EXPECT_EQ(converted(mixed, "True"), "true");
  EXPECT_EQ(converted(mixed, "null"), "null");
  EXPECT_EQ(converted(mixed, "[3]"), "[3]");
  EXPECT_EQ(converted(mixed, "three"), "\"three\"");
  EXPECT_EQ(converted(R"({"enum": ["1", "2"]})", "3"), "\"3\"");
  EXPECT_EQ(converted(R"({"enum": ["a"]})", "{}"), "\"{}\"");
  EXPECT_EQ(converted(R"({"const": 7})", "7"), "7");
  EXPECT_EQ(converted(R"({"const": "x"})", "\"x\""), "\"x\"");
  EXPECT_EQ(converted(R"({"anyOf": [{"enum": ["auto"]}, {"type": "integer"}]})", "5"), "5");
}

TEST(ToolSchema, References) {
  const ToolSet set = tool_with(Json::parse(R"({
    "$defs": {"Limit": {"type": "integer"}, "a/b~c": {"type": "boolean"}, "In Words": {"type": "null"},
              "Chain": {"allOf": [{"$ref": "#/$defs/Limit"}]}, "Self": {"anyOf": [{"$ref": "#/$defs/Self"}, {"type": "integer"}]},
              "Text": {"type": "string"}},
    "properties": {"limit": {"$ref": "#/$defs/Limit"}, "escaped": {"$ref": "#/$defs/a~1b~0c"}, "percent": {"$ref": "#/$defs/In%20Words"},
                   "chain": {"$ref": "#/$defs/Chain"}, "self": {"$ref": "#/$defs/Self"}, "text": {"$ref": "#/$defs/Text"},
                   "index": {"$ref": "#/$defs/Self/anyOf/1"}, "beyond": {"$ref": "#/$defs/Self/anyOf/99999999999999999999"}}})"));
  EXPECT_EQ(set.convert("t", "limit", "5"), "5");
  EXPECT_EQ(set.convert("t", "escaped", "true"), "true");
  EXPECT_EQ(set.convert("t", "percent", "null"), "null");
  EXPECT_EQ(set.convert("t", "chain", "5"), "5");
  EXPECT_EQ(set.convert("t", "self", "5"), "5");
  EXPECT_EQ(set.convert("t", "index", "5"), "5");
  EXPECT_EQ(set.convert("t", "beyond", "5"), "\"5\"");
  EXPECT_TRUE(set.is_plain_string("t", "text"));
}

TEST(ToolSchema, FindsPropertiesThroughTheRootsParts) {
  const ToolSet set = tool_with(Json::parse(R"({"$defs": {"Args": {"properties": {"a": {"type": "integer"}}}},
    "allOf": [{"$ref": "#/$defs/Args"}, {"properties": {"b": {"type": "boolean"}}}]})"));
  EXPECT_EQ(set.convert("t", "a", "5"), "5");
  EXPECT_EQ(set.convert("t", "b", "0"), "false");
}

TEST(ToolSchema, ManyWaysToTheSameSchemaCostNoMoreThanOne) {
  Json parameters = {{"properties", {{"p", {{"$ref", "#/$defs/0"}}}}}};
  for (int i = 0; i < 60; ++i) {
    const Json next = {{"$ref", "#/$defs/" + std::to_string(i + 1)}};
    parameters["$defs"][std::to_string(i)] = {{"anyOf", {next, next}}, {"oneOf", {next, next}}};
  }
  parameters["$defs"]["60"] = {{"type", "integer"}};
  EXPECT_EQ(tool_with(parameters).convert("t", "p", "5"), "5");
}

TEST(JsonString, EscapesWhatJsonDemandsAndMendsTheRest) {
  EXPECT_EQ(json_string("a\"b\\c/\n\t\r\b\x01\x7F"), "\"a\\\"b\\\\c/\\n\\t\\r\\u0008\\u0001\x7F\"");
  EXPECT_EQ(json_string("é\xFF"), "\"é\uFFFD\"");
  EXPECT_EQ(Json::parse(json_string("\x1F \u2028😀")), Json("\x1F \u2028😀"));
}

}  // namespace
}  // namespace calla
