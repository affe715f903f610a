// Tools in chat completions: calls in answers, in histories, and the choice of them.
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "chat_support.h"

namespace calla {
namespace {

using namespace test;

TEST(ChatTools, Q035_ACallCutOffIsNotExecutable) {
  ScriptedServer server;
  const std::string half = "<tool_call>\n<function=get_weather>\n<parameter=city>\nMad";
  server.play({.tokens = tokens_of(half), .ends = false});
  const Json body = chat_body("?", {{"tools", {weather_tool()}}, {"max_tokens", tokens_of(half).size()}});
  const Json choice = server.chat(body).json().at("choices").at(0);
  EXPECT_FALSE(choice.at("message").contains("tool_calls"));
  EXPECT_EQ(choice.at("message").at("content"), half);
  EXPECT_EQ(choice.at("finish_reason"), "length");

  const Joined joined = stream_of(server, body);
  ASSERT_EQ(joined.tool_calls.size(), 1U);
  EXPECT_FALSE(Json::accept(joined.tool_calls[0].at("arguments").get<std::string>())) << "it is not closed";
  EXPECT_EQ(joined.finish_reason, "length");
}

TEST(ChatTools, Q053_ToolCallDeltasHaveTheFormThatSdksExpect) {
  ScriptedServer server;
  server.say(weather_call + "\n" + echo_call);
  const Joined joined = stream_of(server, chat_body("?", {{"tools", {weather_tool(), echo_tool()}}}));
  std::map<int, int> seen;
  for (const Json& chunk : joined.chunks) {
    const Json& delta = chunk.at("choices").at(0).at("delta");
    for (const auto& [key, value] : delta.items()) EXPECT_FALSE(value.is_null()) << key;
    if (!delta.contains("tool_calls")) continue;
    EXPECT_FALSE(delta.contains("content"));
    for (const Json& piece : delta.at("tool_calls")) {
      if (seen[piece.at("index").get<int>()]++ == 0) {
        EXPECT_EQ(piece.at("type"), "function");
        EXPECT_TRUE(piece.at("id").is_string());
        EXPECT_TRUE(piece.at("function").at("name").is_string());
        EXPECT_EQ(piece.at("function").at("arguments"), "");
      } else {
        EXPECT_EQ(piece.size(), 2U) << "index and function alone: " << piece;
        EXPECT_EQ(piece.at("function").size(), 1U);
      }
    }
  }
  EXPECT_EQ(seen.size(), 2U);
  EXPECT_EQ(Json::parse(joined.tool_calls[0].at("arguments").get<std::string>()),
            Json::parse(R"({"city": "Madrid", "days": 3})"));
  EXPECT_EQ(joined.finish_reason, "tool_calls");
}

TEST(ChatTools, Q044_NothingComesBetweenThePiecesOfACall) {
  ScriptedServer server;
  server.say("Well.\n\n" + weather_call + "\n" + echo_call);
  const Joined joined = stream_of(server, chat_body("?", {{"tools", {weather_tool(), echo_tool()}}}));
  bool called = false;
  for (const Json& chunk : joined.chunks) {
    const Json& delta = chunk.at("choices").at(0).at("delta");
    called = called || delta.contains("tool_calls");
    EXPECT_FALSE(called && delta.contains("content")) << delta;
  }
  EXPECT_EQ(joined.content, "Well.");
}

TEST(ChatTools, Q056_LongArgumentsAreStreamedAsTheyCome) {
  ScriptedServer server;
  std::string text;
  for (int i = 0; i < 60; ++i) text += fmt::format("line {} \"quoted\"\n", i);
  server.say("<tool_call>\n<function=echo>\n<parameter=text>\n" + text +
             "</parameter>\n</function>\n</tool_call>");
  const Joined joined = stream_of(server, chat_body("?", {{"tools", {echo_tool()}}}));
  EXPECT_GT(joined.chunks.size(), 100U) << "in many pieces";
  EXPECT_EQ(Json::parse(joined.tool_calls[0].at("arguments").get<std::string>()).at("text"),
            text.substr(0, text.size() - 1));
}

TEST(ChatTools, Q068_Q073_HistoryWithToolsIsTaken) {
  ScriptedServer server;
  const Json two_results =
      Json::parse(R"({"messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "",
      "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}, {"function": {"name": "b", "arguments": "{}"}}]},
      {"role": "tool", "content": "ra"}, {"role": "tool", "content": "rb"}]})");
  std::vector<Token> prompt;
  server.write([&](std::span<const Token> given, const auto&) {
    prompt.assign(given.begin(), given.end());
    return Script{.tokens = tokens_of("done\n</think>\n\nDone.")};
  });
  EXPECT_EQ(server.chat(two_results).status, 200);
  EXPECT_EQ(demo_tokenizer().decode(prompt),
            "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n<think>\n\n</"
            "think>\n\n<tool_call>\n<function=a>\n"
            "</function>\n</tool_call>\n<tool_call>\n<function=b>\n</function>\n</"
            "tool_call><|im_end|>\n<|im_start|>user\n"
            "<tool_response>\nra\n</tool_response>\n<tool_response>\nrb\n</"
            "tool_response><|im_end|>\n<|im_start|>assistant\n"
            "<think>\n");

  const Json cut =
      Json::parse(R"({"messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": null,
      "tool_calls": [{"id": "any", "type": "function", "function": {"name": "w",
      "arguments": "{\"path\": \"a.py\", \"content\": \"x"}}]}, {"role": "tool", "tool_call_id": "any", "content": "ok"}]})");
  EXPECT_EQ(server.chat(cut).status, 200);
}

TEST(ChatTools, Q077_NoCallWhereNoneIsAllowed) {
  ScriptedServer server;
  SamplingParams given;
  std::string prompt;
  server.write([&](std::span<const Token> tokens, const SamplingParams& params) {
    given = params;
    prompt = demo_tokenizer().decode(tokens);
    return Script{.tokens = tokens_of("I cannot call.")};
  });
  const Json body = chat_body("Call echo!", {{"tools", {echo_tool()}}, {"tool_choice", "none"}});
  const Json choice = server.chat(body).json().at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_FALSE(choice.at("message").contains("tool_calls"));
  const Token begin = demo_tokenizer().control_token("<tool_call>").value();
  ASSERT_EQ(given.logit_bias.size(), 1U);
  EXPECT_EQ(given.logit_bias[0].first, begin) << "the model cannot begin a call";
  EXPECT_EQ(given.logit_bias[0].second, -std::numeric_limits<float>::infinity());
  EXPECT_NE(prompt.find("echo"), std::string::npos) << "and the prompt stays what it was, for the cache";
}

TEST(ChatTools, Q077_ARequiredCallIsBegunForTheModel) {
  ScriptedServer server;
  std::string prompt;
  const auto plays = [&](const std::string& reply) {
    server.write([&, reply](std::span<const Token> tokens, const auto&) {
      prompt = demo_tokenizer().decode(tokens);
      return Script{.tokens = tokens_of(reply)};
    });
  };
  const std::string rest = "<parameter=text>\nhi\n</parameter>\n</function>\n</tool_call>";
  const Json named{{"type", "function"}, {"function", {{"name", "echo"}}}};
  for (const Json& choice : {Json("required"), named}) {
    for (const bool stream : {false, true}) {
      SCOPED_TRACE(choice.dump() + (stream ? " streamed" : ""));
      plays(rest);
      const Json body = chat_body("?", {{"tools", {echo_tool()}}, {"tool_choice", choice}});
      Json calls;
      std::string finish;
      if (stream) {
        const Joined joined = stream_of(server, body);
        calls = joined.tool_calls;
        finish = joined.finish_reason;
        EXPECT_EQ(joined.content, "");
      } else {
        const Json one = server.chat(body).json().at("choices").at(0);
        finish = one.at("finish_reason");
        for (const Json& call : one.at("message").at("tool_calls")) calls.push_back(call.at("function"));
      }
      ASSERT_EQ(calls.size(), 1U);
      EXPECT_EQ(calls[0].at("name"), "echo");
      EXPECT_EQ(Json::parse(calls[0].at("arguments").get<std::string>()), Json::parse(R"({"text": "hi"})"));
      EXPECT_EQ(finish, "tool_calls");
      EXPECT_TRUE(prompt.ends_with("</think>\n\n<tool_call>\n<function=echo>\n")) << prompt;
    }
  }
  // Of two tools the name is the model's to choose.
  plays("=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>");
  const Json any =
      server.chat(chat_body("?", {{"tools", {echo_tool(), weather_tool()}}, {"tool_choice", "required"}}))
          .json();
  EXPECT_EQ(any.at("choices").at(0).at("message").at("tool_calls").at(0).at("function").at("name"),
            "get_weather");
}

TEST(ChatTools, Q077_ARequiredCallComesAfterTheReasoning) {
  ScriptedServer server;
  const std::string rest = "<parameter=text>\nhi\n</parameter>\n</function>\n</tool_call>";
  for (const std::string reasoning : {"I should call.\n</think>", "I would rather not.<|im_end|>"}) {
    SCOPED_TRACE(reasoning);
    server.say(reasoning + rest);  // what stands between them is the engine's
    Json body = chat_body("?", {{"tools", {echo_tool(), weather_tool()}},
                                {"tool_choice", {{"type", "function"}, {"function", {{"name", "echo"}}}}}});
    body["chat_template_kwargs"]["enable_thinking"] = true;
    const Json choice = server.chat(body).json().at("choices").at(0);
    EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
    EXPECT_TRUE(choice.at("message").at("reasoning_content").get<std::string>().starts_with("I "));
    ASSERT_EQ(choice.at("message").at("tool_calls").size(), 1U);
    EXPECT_EQ(choice.at("message").at("tool_calls").at(0).at("function").at("name"), "echo");
    EXPECT_EQ(choice.at("message").at("content"), nullptr);
  }
}

TEST(ChatTools, Q077_ChoicesThatMakeNoSenseAreRefused) {
  ScriptedServer server;
  const auto param = [&](const Json& more) {
    const HttpAnswer answer = server.chat(chat_body("?", more));
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json().at("error").at("param").get<std::string>();
  };
  EXPECT_EQ(param({{"tools", {echo_tool()}},
                   {"tool_choice", {{"type", "function"}, {"function", {{"name", "x"}}}}}}),
            "tool_choice");
  EXPECT_EQ(param({{"tools", {echo_tool()}}, {"tool_choice", "sometimes"}}), "tool_choice");
  EXPECT_EQ(param({{"tools", {echo_tool()}}, {"tool_choice", {{"type", "function"}}}}), "tool_choice.name");
  EXPECT_EQ(param({{"tool_choice", "required"}}), "tool_choice");
  EXPECT_EQ(param({{"tools", {{{"type", "custom"}, {"name", "x"}}}}}), "tools[0].type");
  EXPECT_EQ(param({{"tools", {{{"type", "function"}, {"function", Json::object()}}}}}),
            "tools[0].function.name");
}

TEST(ChatTools, OneCallIsEnoughWithoutParallelCalls) {
  ScriptedServer server;
  server.say(weather_call + "\n" + echo_call);
  const Json body =
      chat_body("?", {{"tools", {weather_tool(), echo_tool()}}, {"parallel_tool_calls", false}});
  const Json choice = server.chat(body).json().at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("tool_calls").size(), 1U);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_EQ(stream_of(server, body).tool_calls.size(), 1U);
}

TEST(ChatTools, Q106_CallIdsAreUnique) {
  ScriptedServer server;
  server.say(echo_call + "\n" + echo_call);
  std::set<std::string> ids;
  for (int turn = 0; turn < 4; ++turn) {
    const Json message =
        server.chat(chat_body("?", {{"tools", {echo_tool()}}})).json().at("choices").at(0).at("message");
    for (const Json& call : message.at("tool_calls")) ids.insert(call.at("id"));
  }
  EXPECT_EQ(ids.size(), 8U);
}

}  // namespace
}  // namespace calla
