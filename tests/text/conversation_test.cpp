#include "text/conversation.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/replayed_arguments.h"

namespace calla {
namespace {

Json nested(std::size_t levels) { return Json::parse(std::string(levels, '[') + std::string(levels, ']')); }

std::string refused(const Json& request) {
  try {
    conversation_from_json(request);
  } catch (const RequestError& error) {
    return error.param();
  }
  return "nothing was refused";
}

TEST(Conversation, ReadsEveryFieldOfAMessage) {
  const Conversation conversation = conversation_from_json(Json::parse(R"({
    "model": "any",
    "messages": [
      {"role": "system", "content": "s"},
      {"role": "developer", "content": [{"type": "text", "text": "d"}]},
      {"role": "user", "content": " u "},
      {"role": "assistant", "content": null, "reasoning": "r", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}},
        {"function": {"name": "g"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "t"},
      {"role": "function", "name": "g", "content": {"x": 1}}],
    "tools": [{"type": "function", "function": {"name": "f"}}]})"));
  ASSERT_EQ(conversation.messages.size(), 6U);
  const auto& [system, developer, user, assistant, tool, function] =
      std::tie(conversation.messages[0], conversation.messages[1], conversation.messages[2],
               conversation.messages[3], conversation.messages[4], conversation.messages[5]);
  EXPECT_EQ(system.role, Role::system);
  EXPECT_EQ(system.content, "s");
  EXPECT_EQ(developer.role, Role::developer);
  EXPECT_EQ(developer.content, "d");
  EXPECT_EQ(user.role, Role::user);
  EXPECT_EQ(user.content, " u ") << "the text as it was sent";
  EXPECT_EQ(user.reasoning, std::nullopt);
  EXPECT_EQ(assistant.role, Role::assistant);
  EXPECT_EQ(assistant.content, "");
  EXPECT_EQ(assistant.reasoning, "r");
  ASSERT_EQ(assistant.tool_calls.size(), 2U);
  EXPECT_EQ(assistant.tool_calls[0].id, "c1");
  EXPECT_EQ(assistant.tool_calls[0].name, "f");
  EXPECT_EQ(assistant.tool_calls[0].arguments.dump(), R"({"b":1,"a":[2]})")
      << "keys in the order of the text";
  EXPECT_EQ(assistant.tool_calls[1].id, "");
  EXPECT_EQ(assistant.tool_calls[1].arguments, Json::object());
  EXPECT_EQ(tool.role, Role::tool);
  EXPECT_EQ(tool.tool_call_id, "c1");
  EXPECT_EQ(function.role, Role::tool);
  EXPECT_EQ(function.content, R"({"x": 1})");
  ASSERT_EQ(conversation.tools.size(), 1U);
  EXPECT_EQ(conversation.tools[0].dump(), R"({"type":"function","function":{"name":"f"}})");
}

TEST(Conversation, IgnoresWhatBelongsToAnotherRole) {
  const Conversation conversation = conversation_from_json(Json::parse(R"({"messages": [
      {"role": "user", "content": "u", "reasoning_content": "r", "tool_calls": [{}], "tool_call_id": "c"}]})"));
  EXPECT_EQ(conversation.messages[0].reasoning, std::nullopt);
  EXPECT_TRUE(conversation.messages[0].tool_calls.empty());
  EXPECT_EQ(conversation.messages[0].tool_call_id, "");
}

TEST(Conversation, RefusesJsonThatNestsTooDeeplyWhereverItMayStand) {
  Json request = Json::parse(
      R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant"}], "tools": [{}]})");
  Json tool = request;
  tool["tools"][0]["parameters"] = nested(257);
  EXPECT_EQ(refused(tool), "tools[0]");
  Json arguments = request;
  arguments["messages"][1]["tool_calls"] = Json::parse(R"([{"function": {"name": "f"}}])");
  arguments["messages"][1]["tool_calls"][0]["function"]["arguments"]["a"] = nested(257);
  EXPECT_EQ(refused(arguments), "messages[1].tool_calls[0].function.arguments");
  Json result = request;
  result["messages"][1]["role"] = "tool";
  result["messages"][1]["content"]["a"] = nested(257);
  EXPECT_EQ(refused(result), "messages[1].content");
  Json fine = request;
  fine["tools"][0]["parameters"] = nested(200);
  EXPECT_EQ(conversation_from_json(fine).tools.size(), 1U);
}

TEST(PromptOptions, ReadsEveryNameAndCountsNullAsAbsent) {
  const PromptOptions none = prompt_options_from_json(Json());
  EXPECT_TRUE(none.add_generation_prompt);
  EXPECT_TRUE(none.enable_thinking);
  EXPECT_FALSE(none.preserve_thinking);
  EXPECT_FALSE(none.continue_final_message);
  const PromptOptions all = prompt_options_from_json(Json::parse(
      R"({"add_generation_prompt": false, "enable_thinking": false, "preserve_thinking": true,
          "continue_final_message": true, "add_vision_id": true})"));
  EXPECT_FALSE(all.add_generation_prompt);
  EXPECT_FALSE(all.enable_thinking);
  EXPECT_TRUE(all.preserve_thinking);
  EXPECT_TRUE(all.continue_final_message);
  EXPECT_TRUE(prompt_options_from_json(Json::parse(R"({"enable_thinking": null})")).enable_thinking);
}

TEST(ReplayedArguments, TakeAnObjectInEitherForm) {
  EXPECT_EQ(replayed_arguments(Json::parse(R"({"b":1,"a":2})")).dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(replayed_arguments(R"( {"b": 1, "a": {"c": []}} )").dump(), R"({"b":1,"a":{"c":[]}})");
}

TEST(ReplayedArguments, CountEmptyFormsAsNone) {
  for (const Json& sent : {Json(), Json(""), Json(" \n"), Json("null"), Json("[]"), Json(" [ ] "), Json("{}"),
                           Json::array(), Json::object()}) {
    EXPECT_EQ(replayed_arguments(sent), Json::object()) << sent;
  }
}

TEST(ReplayedArguments, CloseWhatWasCutOff) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"path": "a.py", "content": "x)", R"({"path":"a.py","content":"x"})"},
      {R"({"path": "a.py", "content": "x\)", R"({"path":"a.py","content":"x"})"},
      {R"({"path": "a.py", "content": "x\u00e)", R"({"path":"a.py","content":"x"})"},
      {R"({"path": "a.py", "content": "x\ud83d\ude0)", R"({"path":"a.py","content":"x"})"},
      {R"({"path": "a.py", "content": "x\ud83d\ude00)", R"({"path":"a.py","content":"x😀"})"},
      {R"({"path": "a\\\"b", "content": "x\\)", R"({"path":"a\\\"b","content":"x\\"})"},
      {R"({"list": [1, {"k": "v")", R"({"list":[1,{"k":"v"}]})"},
      {R"({"list": [1, {"k")", R"({"list":[1]})"},
      {R"({"a": "1, 2", "b": tr)", R"({"a":"1, 2"})"},
      {R"({"a": 1, )", R"({"a":1})"},
      {R"({"a": 1, "b)", R"({"a":1})"},
      {R"({"a": 1, "b": )", R"({"a":1})"},
      {R"({)", R"({})"},
  };
  for (const auto& [sent, arguments] : cases) EXPECT_EQ(replayed_arguments(sent).dump(), arguments) << sent;
}

TEST(ReplayedArguments, KeepTheRawTextOfWhatCannotBeMended) {
  for (const char* sent :
       {"plain", "{\"a\"", "{\"a\": 1}}", "{\"a\": [1}", "]", "\"", "{'a': 1}", "{\"a\": 1} x", "7", "[1, 2]",
        "[1, 2", "\"text\"", "true", "{\"a\": \"line\nline\"}"}) {
    const Json arguments = replayed_arguments(sent);
    ASSERT_EQ(arguments.size(), 1U) << sent;
    EXPECT_EQ(arguments["arguments"], sent);
  }
  EXPECT_EQ(replayed_arguments(Json::parse("[1,2]")).dump(), R"({"arguments":"[1, 2]"})");
  EXPECT_EQ(replayed_arguments(Json(1.0)).dump(), R"({"arguments":"1.0"})");
  EXPECT_EQ(replayed_arguments(Json(true)).dump(), R"({"arguments":"true"})");
}

TEST(ReplayedArguments, AreSafeFromDeepText) {
  for (const std::size_t levels : {300U, 300000U}) {
    const std::string open = "{\"a\": " + std::string(levels, '[');
    EXPECT_EQ(replayed_arguments(open)["arguments"], open);
    const std::string closed = open + std::string(levels, ']') + "}";
    EXPECT_EQ(replayed_arguments(closed)["arguments"], closed);
  }
}

}  // namespace
}  // namespace calla
