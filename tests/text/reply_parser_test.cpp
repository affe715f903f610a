#include "text/reply_parser.h"

#include <ostream>
#include <random>

#include <gtest/gtest.h>

#include "support/support.h"
#include "text/reply_law.h"
#include "text/utf8.h"

namespace calla {
namespace {

using test::ReplyPieces;
using test::ReplySetting;

ToolSet tools_named(const Json& schemas) {
  std::vector<Json> tools;
  for (const auto& [name, parameters] : schemas.items()) {
    tools.push_back({{"type", "function"}, {"function", {{"name", name}, {"parameters", parameters}}}});
  }
  return ToolSet(tools);
}

struct ReplyCase {
  std::string id;
  ReplySetting setting;
  ReplyPieces pieces;
  Json expect;
};

ReplyCase reply_case(const Json& json) {
  ReplyCase result;
  result.id = json.at("id");
  result.setting.tools = tools_named(json.at("tools"));
  result.setting.starts_in_reasoning = json.at("thinking");
  result.setting.end = json.at("end") == "stop" ? ReplyEnd::stop : ReplyEnd::length;
  if (json.contains("output")) {
    result.pieces.push_back({json.at("output"), false});
  } else {
    for (const Json& piece : json.at("pieces")) {
      const bool control = piece.is_object();
      result.pieces.push_back({control ? piece.at("control") : piece, control});
    }
  }
  result.expect = json.at("expect");
  return result;
}

Json json_or_null(const std::optional<std::string>& text) { return text ? Json(*text) : Json(); }

/// The reply in the form of the cases' `expect`.
Json collected(const std::vector<ReplyEvent>& events, ReplyEnd end) {
  ReplyCollector collector;
  for (const ReplyEvent& event : events) collector.add(event);
  const Reply reply = collector.reply();
  Json calls = Json::array();
  for (const ToolCall& call : reply.tool_calls)
    calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
  const char* reason = end == ReplyEnd::length ? "length" : calls.empty() ? "stop" : "tool_calls";
  return {{"reasoning_content", json_or_null(reply.reasoning)},
          {"content", json_or_null(reply.content)},
          {"tool_calls", std::move(calls)},
          {"finish_reason", reason}};
}

/// All ways to cut a reply into two and into three.
std::vector<std::vector<std::size_t>> ways_to_cut(std::size_t size) {
  std::vector<std::vector<std::size_t>> ways;
  for (std::size_t first = 1; first < size; ++first) {
    ways.push_back({first});
    for (std::size_t second = first + 1; second < size; ++second) ways.push_back({first, second});
  }
  return ways;
}

/// A case as it stands in the file; as a test's parameter it is shown by its name.
struct CaseJson {
  Json json;
};
std::ostream& operator<<(std::ostream& out, const CaseJson& item) { return out << item.json.at("id"); }

class ReplyCases : public testing::TestWithParam<CaseJson> {};

TEST_P(ReplyCases, GivesTheSameReplyHoweverItIsCut) {
  const ReplyCase item = reply_case(GetParam().json);
  const ReplyPieces whole = test::whole(item.pieces);
  const std::vector<ReplyEvent> events = test::parse_reply(item.setting, whole);
  EXPECT_EQ(collected(events, item.setting.end), item.expect) << item.id << "\n" << test::describe(events);
  EXPECT_TRUE(test::calls_are_whole(events)) << item.id << "\n" << test::describe(events);

  const auto expect_same = [&](const ReplyPieces& pieces, const char* way) {
    const std::vector<ReplyEvent> cut_events = test::parse_reply(item.setting, pieces);
    if (cut_events == events) return true;
    ADD_FAILURE() << item.id << ", " << way << "\n"
                  << test::describe(cut_events) << "instead of\n"
                  << test::describe(events);
    return false;
  };
  expect_same(item.pieces, "in its own pieces");
  expect_same(test::byte_by_byte(whole), "byte by byte");
  for (const auto& offsets : ways_to_cut(test::text_of(whole).size())) {
    if (expect_same(test::cut(whole, offsets), "cut")) continue;
    for (const std::size_t offset : offsets) ADD_FAILURE() << "at " << offset;
    break;
  }
}

std::vector<CaseJson> all_cases() {
  std::vector<CaseJson> cases;
  for (const Json& json : read_json_file(test::data("reply_cases.json"))) cases.push_back({json});
  return cases;
}

std::string test_name(const testing::TestParamInfo<CaseJson>& parameter) {
  std::string name = std::to_string(parameter.index) + '_';
  for (const char letter : parameter.param.json.at("id").get_ref<const std::string&>()) {
    const bool plain = (letter >= '0' && letter <= '9') || (letter >= 'A' && letter <= 'Z') ||
                       (letter >= 'a' && letter <= 'z');
    name += plain ? letter : '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, ReplyCases, testing::ValuesIn(all_cases()), test_name);

ToolSet file_tools() {
  return tools_named(Json::parse(R"({
    "read": {"type": "object", "properties": {"file": {"type": "string"}}},
    "write_file": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"},
                                                    "mode": {"type": "integer"}}},
    "now": {}})"));
}

const std::string read_call =
    "<tool_call>\n<function=read>\n<parameter=file>\na.txt\n</parameter>\n</function>\n</tool_call>";

/// What the parser sends for one more piece.
std::vector<ReplyEvent> fed(ReplyParser& parser, std::string_view bytes) {
  std::vector<ReplyEvent> events;
  parser.feed(bytes, events);
  return events;
}
std::vector<ReplyEvent> finished(ReplyParser& parser, ReplyEnd end = ReplyEnd::stop) {
  std::vector<ReplyEvent> events;
  parser.finish(end, events);
  return events;
}
using Events = std::vector<ReplyEvent>;

TEST(ReplyStream, SendsTextAtOnce) {
  ReplyParser parser(file_tools(), false);
  EXPECT_EQ(fed(parser, "Hello,"), Events{ContentDelta{"Hello,"}});
  EXPECT_EQ(fed(parser, " "), Events{}) << "a call would drop it";
  EXPECT_EQ(fed(parser, "a <"), Events{ContentDelta{" a"}});
  EXPECT_EQ(fed(parser, "b"), Events{ContentDelta{" <b"}});
  EXPECT_EQ(fed(parser, "</parameter"), Events{ContentDelta{"</parameter"}})
      << "no tag means anything here but an opening";
  EXPECT_EQ(fed(parser, "<tool_cal"), Events{});
  EXPECT_EQ(fed(parser, "m>"), Events{ContentDelta{"<tool_calm>"}});
  EXPECT_EQ(finished(parser), Events{});
}

TEST(ReplyStream, HoldsNothingBackWithoutTools) {
  ReplyParser parser(ToolSet(), false);
  EXPECT_EQ(fed(parser, "a \n"), Events{ContentDelta{"a \n"}});
  EXPECT_EQ(fed(parser, "<tool_call"), Events{ContentDelta{"<tool_call"}});
}

TEST(ReplyStream, SendsWholeCodePoints) {
  ReplyParser parser(file_tools(), true);
  EXPECT_EQ(fed(parser, "ob\xF0\x9F"), Events{ReasoningDelta{"ob"}});
  EXPECT_EQ(fed(parser, "\x98\x80"), Events{ReasoningDelta{"😀"}});
  EXPECT_EQ(fed(parser, "\xE2</think>"), Events{ReasoningDelta{"\uFFFD"}});
  EXPECT_EQ(fed(parser, "\xE2\x82"), Events{});
  EXPECT_EQ(fed(parser, read_call), (Events{ContentDelta{"\uFFFD"}, ToolCallBegin{0, "read"},
                                            ToolCallArguments{0, R"({"file": "a.txt"})"}, ToolCallEnd{0}}));
}

TEST(ReplyStream, BeginsACallWithItsNameOnly) {
  ReplyParser parser(file_tools(), false);
  EXPECT_EQ(fed(parser, "<tool_call>\n<function=read>\n<parameter=file"), Events{});
  EXPECT_EQ(fed(parser, ">"), (Events{ToolCallBegin{0, "read"}, ToolCallArguments{0, R"({"file": ")"}}));
  EXPECT_EQ(fed(parser, "\na.txt\n</parameter>\n</function>\n"), Events{(ToolCallArguments{0, "a.txt"})});
  EXPECT_EQ(fed(parser, "</tool_call>"), (Events{ToolCallArguments{0, "\"}"}, ToolCallEnd{0}}));
  EXPECT_EQ(fed(parser, "\n"), Events{});
  EXPECT_EQ(finished(parser), Events{});
}

TEST(ReplyStream, SendsALongStringWhileItIsWritten) {
  ReplyParser parser(file_tools(), false);
  fed(parser, "<tool_call>\n<function=write_file>\n<parameter=path>\na\n</parameter>\n<parameter=content>");
  EXPECT_EQ(fed(parser, "\nfor (i = 0; i < n"), Events{(ToolCallArguments{0, "for (i = 0; i < n"})});
  EXPECT_EQ(fed(parser, ") \"x\";\n"), Events{(ToolCallArguments{0, R"() \"x\";)"})})
      << "a last newline is not the value's";
  EXPECT_EQ(fed(parser, "  }"), Events{(ToolCallArguments{0, R"(\n  })"})});
  EXPECT_EQ(fed(parser, "\xC3"), Events{});
  EXPECT_EQ(fed(parser, "\xA9</tool_call><function"),
            Events{(ToolCallArguments{0, "é</tool_call><function"})});
  EXPECT_EQ(fed(parser, "</parameter>"), Events{});
  EXPECT_EQ(fed(parser, "\n"), Events{});
  EXPECT_EQ(fed(parser, "."), Events{(ToolCallArguments{0, R"(</parameter>\n.)"})});
  EXPECT_EQ(finished(parser, ReplyEnd::length).size(), 1U) << "the call is cut, nothing is closed";
}

TEST(ReplyStream, ConvertsOtherValuesWhenTheyAreComplete) {
  ReplyParser parser(file_tools(), false);
  EXPECT_EQ(fed(parser, "<function=write_file>\n<parameter=mode>"),
            (Events{ToolCallBegin{0, "write_file"}, ToolCallArguments{0, R"({"mode": )"}}));
  EXPECT_EQ(fed(parser, "\n420\n</parameter>\n"), Events{});
  EXPECT_EQ(fed(parser, "<parameter=path>"), Events{(ToolCallArguments{0, R"(420, "path": ")"})});
}

TEST(ReplyStream, SuspendsCallsInTheReasoning) {
  ReplyParser parser(file_tools(), true);
  EXPECT_EQ(fed(parser, "Look.\n" + read_call + "\n"), Events{ReasoningDelta{"Look."}});
  EXPECT_EQ(fed(parser, read_call), Events{});
  EXPECT_TRUE(parser.in_reasoning());
  EXPECT_EQ(finished(parser),
            (Events{ToolCallBegin{0, "read"}, ToolCallArguments{0, R"({"file": "a.txt"})"}, ToolCallEnd{0},
                    ToolCallBegin{1, "read"}, ToolCallArguments{1, R"({"file": "a.txt"})"}, ToolCallEnd{1}}));
  EXPECT_FALSE(parser.in_reasoning());
}

TEST(ReplyStream, ReleasesASuspendedCallAtTheFirstSignThatItIsNone) {
  for (const std::string_view sign : {".", "<tool_call>.", "<tool_call><function=rm>", "<think>"}) {
    ReplyParser parser(file_tools(), true);
    EXPECT_EQ(fed(parser, read_call), Events{});
    EXPECT_EQ(fed(parser, sign), Events{ReasoningDelta{read_call + std::string(sign)}});
  }
  ReplyParser parser(file_tools(), true);
  EXPECT_EQ(fed(parser, "<tool_call>\n<function=read>\n<parameter=file>\nx\n"), Events{});
  EXPECT_EQ(fed(parser, "</think>"),
            Events{ReasoningDelta{"<tool_call>\n<function=read>\n<parameter=file>\nx"}});
  EXPECT_FALSE(parser.in_reasoning());
  EXPECT_EQ(fed(parser, "\n\n" + read_call).size(), 3U) << "the next call is the first";
}

TEST(ReplyStream, KnowsWhereItStands) {
  EXPECT_FALSE(ReplyParser(file_tools(), false).in_reasoning());
  ReplyParser parser(file_tools(), true);
  EXPECT_TRUE(parser.in_reasoning());
  fed(parser, "x</thin");
  EXPECT_TRUE(parser.in_reasoning());
  fed(parser, "k>");
  EXPECT_FALSE(parser.in_reasoning());
}

TEST(ReplyStream, ShowsACutCallAsItWasWritten) {
  ReplyParser parser(file_tools(), false);
  const std::string begun = "<tool_call>\n<function=read>\n<parameter=file>\n a\"\n</parameter>\n";
  fed(parser, begun);
  EXPECT_EQ(finished(parser, ReplyEnd::length), Events{(ToolCallCut{0, begun})});
}

TEST(ReplyCollector, LeavesOutACallThatHasNotEnded) {
  ReplyCollector collector;
  collector.add(ContentDelta{"A"});
  collector.add(ToolCallBegin{0, "read"});
  collector.add(ToolCallArguments{0, R"({"file": )"});
  EXPECT_TRUE(collector.reply().tool_calls.empty());
  collector.add(ToolCallArguments{0, R"("a"})"});
  collector.add(ToolCallEnd{0});
  ASSERT_EQ(collector.reply().tool_calls.size(), 1U);
  EXPECT_EQ(collector.reply().tool_calls[0].arguments, (Json{{"file", "a"}}));
  EXPECT_EQ(collector.reply().content, "A");
  EXPECT_EQ(collector.reply().reasoning, std::nullopt);
}

// A parser that looked again at what it has held back would not come to an end here.
TEST(ReplyParser, WorkIsLinear) {
  constexpr std::size_t size = 1 << 18;
  const std::string value = "<tool_call><function=read><parameter=file>";
  struct Run {
    std::string begin;
    std::string repeated;
  };
  for (const bool starts_in_reasoning : {false, true}) {
    for (const Run& run : {Run{"", "<"},
                           {"", " "},
                           {"", "<tool_call>"},
                           {"", "<tool_call>\n<function=now>\n"},
                           {"", "<tool_call>\n<function=now>\n</function>\n"},
                           {"", "\n<function=now>"},
                           {"", "\n<function=now></function>"},
                           {"", "<function=a"},
                           {"<tool_call>", "\n"},
                           {"<tool_call><function=", "a"},
                           {"<tool_call><function=now></function>", "\n"},
                           {value, "</parameter>"},
                           {value, "</function>"},
                           {value, "</parameter></function><tool_call>"},
                           {value, "</parameter>\n</tool_call>\n"},
                           {value, "</parameter><parameter=file>"},
                           {value, "</parameter><parameter="},
                           {value + "</parameter>", "\n"},
                           {value, "\xF0\x9F"},
                           {value, "\n"},
                           {read_call, "\n"},
                           {"", read_call},
                           {"", read_call + "<tool_call>"}}) {
      std::string reply = run.begin;
      while (reply.size() < size) reply += run.repeated;
      ReplyParser parser(file_tools(), starts_in_reasoning);
      std::vector<ReplyEvent> events;
      for (const char byte : reply) parser.feed({&byte, 1}, events);
      parser.finish(ReplyEnd::stop, events);
      EXPECT_TRUE(test::calls_are_whole(test::joined(events))) << run.begin << run.repeated;
    }
  }
}

/// Replies made of parts of tags, names, whitespace and text.
class RandomReplies {
 public:
  explicit RandomReplies(unsigned seed) : random_(seed) {}

  ReplyPieces reply() {
    static const std::vector<std::string> fragments = {"<tool_call>",
                                                       "</tool_call>",
                                                       "<function=read>",
                                                       "<function=write_file>",
                                                       "<function=now>",
                                                       "<function=rm>",
                                                       "</function>",
                                                       "<parameter=file>",
                                                       "<parameter=mode>",
                                                       "<parameter=path>",
                                                       "</parameter>",
                                                       "</think>",
                                                       "<think>",
                                                       "<",
                                                       "</",
                                                       "<tool",
                                                       "<function=",
                                                       "<parameter=",
                                                       ">",
                                                       "\n",
                                                       "\n",
                                                       "\n",
                                                       " ",
                                                       "\t\r",
                                                       "a",
                                                       "x y",
                                                       "7",
                                                       "null",
                                                       "{\"a\": [1]}",
                                                       "\"",
                                                       "\\",
                                                       "\xC3",
                                                       "\xA9",
                                                       "\xF0\x9F\x98\x80",
                                                       "\xFF",
                                                       read_call,
                                                       "<tool_call>\n<function=read>\n",
                                                       "\n</parameter>\n</function>\n</tool_call>",
                                                       "\n</parameter>\n</function>\n"};
    ReplyPieces pieces;
    for (std::size_t count = below(14); count > 0; --count) {
      const std::string& fragment = fragments[below(fragments.size())];
      pieces.push_back({fragment, (fragment == "</think>" || fragment == "<think>") && below(2) == 0});
    }
    return pieces;
  }
  ReplySetting setting() {
    return {below(8) == 0 ? ToolSet() : file_tools(), below(2) == 0,
            below(4) == 0 ? ReplyEnd::length : ReplyEnd::stop};
  }
  std::vector<std::size_t> offsets(std::size_t size) {
    std::vector<std::size_t> result(1 + below(6));
    for (std::size_t& offset : result) offset = below(size + 1);
    std::sort(result.begin(), result.end());
    return result;
  }

 private:
  std::size_t below(std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random_);
  }
  std::mt19937 random_;
};

/// All the text of reasoning, content and cut calls, without whitespace: what must be left of a reply without
/// calls.
std::string without_space(std::string_view text) {
  std::string result;
  for (const char byte : text) {
    if (byte != ' ' && (byte < '\t' || byte > '\r')) result += byte;
  }
  return result;
}

TEST(ReplyParser, RandomRepliesDoNotDependOnTheCut) {
  for (unsigned seed = 0; seed < 20000; ++seed) {
    RandomReplies random(seed);
    const ReplyPieces whole = test::whole(random.reply());
    const ReplySetting setting = random.setting();
    const std::string text = test::text_of(whole);
    const auto events = test::parse_reply(setting, whole);
    ASSERT_TRUE(test::calls_are_whole(events)) << seed << "\n" << text << "\n" << test::describe(events);
    ASSERT_EQ(test::parse_reply(setting, test::byte_by_byte(whole)), events) << seed << "\n"
                                                                             << test::describe(events);
    for (int i = 0; i < 5; ++i) {
      const auto offsets = random.offsets(text.size());
      ASSERT_EQ(test::parse_reply(setting, test::cut(whole, offsets)), events) << seed << "\n"
                                                                               << test::describe(events);
    }
  }
}

TEST(ReplyParser, LosesNoTextWhereThereIsNoCall) {
  for (unsigned seed = 0; seed < 20000; ++seed) {
    RandomReplies random(seed);
    ReplyPieces pieces = random.reply();
    for (auto& piece : pieces) piece.control = false;
    ReplySetting setting = random.setting();
    setting.starts_in_reasoning = false;
    const std::string text = test::text_of(pieces);
    Json expected = collected({}, setting.end);
    const auto events = test::parse_reply(setting, test::whole(pieces));
    bool calls = false;
    for (const ReplyEvent& event : events) calls = calls || std::holds_alternative<ToolCallBegin>(event);
    if (calls) continue;
    const std::string content = events.empty() ? "" : std::get<ContentDelta>(events.front()).text;
    ASSERT_EQ(content, mend_utf8(text)) << seed;
  }
}

TEST(ReplyParser, LosesNoTextInTheReasoning) {
  for (unsigned seed = 0; seed < 20000; ++seed) {
    RandomReplies random(seed);
    ReplyPieces pieces = random.reply();
    for (auto& piece : pieces) piece.control = false;
    pieces.insert(pieces.begin(), {"x", false});
    const std::string text = test::text_of(pieces);
    if (text.find("</think>") != std::string::npos) continue;
    // Nothing is a call at the limit.
    const auto events = test::parse_reply({file_tools(), true, ReplyEnd::length}, test::whole(pieces));
    ASSERT_EQ(events.size(), 1U) << seed << "\n" << test::describe(events);
    ASSERT_EQ(without_space(std::get<ReasoningDelta>(events.front()).text), without_space(mend_utf8(text)))
        << seed;
  }
}

}  // namespace
}  // namespace calla
