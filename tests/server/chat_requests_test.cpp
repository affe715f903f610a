// What a request for a chat completion may ask, and what is refused.
#include <gtest/gtest.h>

#include "chat_support.h"

namespace calla {
namespace {

using namespace test;

TEST(ChatRequests, Q058_Q059_Q062_Q067_WhatAgentsSendIsTaken) {
  ScriptedServer server;
  for (
      const char* messages : {
          R"([{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, {"role": "user", "content": "C"}])",
          R"([{"role": "developer", "content": "A"}, {"role": "user", "content": "C"}])",
          R"([{"role": "user", "content": "A"}, {"role": "system", "content": "B"}, {"role": "user", "content": "C"}])",
          R"([{"role": "user", "content": [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}]}])",
          R"([{"role": "user", "content": "A"}, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
               "function": {"name": "f", "arguments": {"x": 1}}}]}, {"role": "tool", "content": "r", "tool_call_id": "1"}])",
          R"([{"role": "user", "content": "A"}, {"role": "assistant", "content": "", "reasoning": "because"},
               {"role": "user", "content": "C"}])",
          R"([{"role": "assistant", "content": "A"}, {"role": "tool", "content": "r"}])",
          R"([{"role": "user", "content": "A"}, {"role": "assistant", "content": "The answer is"}])",
      }) {
    const HttpAnswer answer = server.chat({{"messages", Json::parse(messages)}});
    EXPECT_EQ(answer.status, 200) << messages << answer.body;
  }
}

TEST(ChatRequests, Q071_NoMessagesIsARefusalThatNamesThem) {
  ScriptedServer server;
  for (const char* messages : {"[]", R"([{"role": "system", "content": "A"}])"}) {
    const HttpAnswer answer = server.chat({{"messages", Json::parse(messages)}});
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.json().at("error").at("type"), "invalid_request_error");
    EXPECT_EQ(answer.json().at("error").at("param"), "messages");
    EXPECT_EQ(answer.json().at("error").at("message").get<std::string>().find('\n'), std::string::npos);
  }
}

TEST(ChatRequests, Q074_TheNewNameOfTheTokenLimitCounts) {
  ScriptedServer server;
  server.play({.tokens = tokens_of("a b c d e f g h i j k l m n o p"), .ends = false});
  const auto completion = [&](const Json& more) {
    const Json json = server.chat(chat_body("?", more)).json();
    EXPECT_EQ(json.at("choices").at(0).at("finish_reason"), "length");
    return json.at("usage").at("completion_tokens").get<int>();
  };
  EXPECT_EQ(completion({{"max_completion_tokens", 5}}), 5);
  EXPECT_EQ(completion({{"max_tokens", 32}, {"max_completion_tokens", 1}}), 1);
  EXPECT_EQ(completion({{"max_tokens", 7}, {"max_completion_tokens", nullptr}}), 7);
  EXPECT_GT(completion({{"max_tokens", nullptr}}), 1000) << "all that the context has";
  EXPECT_GT(completion({{"max_tokens", -1}}), 1000);
}

TEST(ChatRequests, Q076_EmptyAndNullFieldsChangeNothing) {
  ScriptedServer server;
  server.say("Good.");
  const Json plain = server.chat(chat_body("?")).json().at("choices");
  const Json more =
      Json::parse(R"({"tools": [], "stop": [], "max_tokens": -1, "temperature": null, "tool_choice": null,
      "response_format": {"type": "text"}, "n": null, "logit_bias": null, "stream": null, "seed": null, "user": "u",
      "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "verbosity": "low", "prompt_cache_key": "k",
      "modalities": ["text"], "parallel_tool_calls": true, "some_new_field": [1, {"x": null}], "model": "gpt-9"})");
  const HttpAnswer answer = server.chat(chat_body("?", more));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json().at("choices"), plain);
}

TEST(ChatRequests, Q080_OtherResponseFormatsAreRefusedByName) {
  ScriptedServer server;
  const auto param = [&](const Json& format) {
    const HttpAnswer answer = server.chat(chat_body("?", {{"response_format", format}}));
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.json().at("error").at("param").get<std::string>();
  };
  EXPECT_EQ(param({{"type", "json_object"}}), "response_format");
  EXPECT_EQ(param({{"type", "yaml"}}), "response_format.type");
  EXPECT_EQ(param("text"), "response_format");
  EXPECT_EQ(server.chat(chat_body("?", {{"response_format", {{"type", "text"}}}})).status, 200);
}

TEST(ChatRequests, Q082_AnOverflowIsARefusalWithBothNumbers) {
  ApiOptions options;
  options.context = 256;
  ScriptedServer server(options);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "word ";
  for (const bool stream : {false, true}) {
    const HttpAnswer answer = server.chat(chat_body(text, {{"stream", stream}}));
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.header("content-type"), "application/json") << "before any event";
    const Json error = answer.json().at("error");
    EXPECT_EQ(error.at("code"), "context_length_exceeded");
    EXPECT_EQ(error.at("param"), "messages");
    const std::string message = error.at("message");
    EXPECT_NE(message.find("256"), std::string::npos) << message;
    EXPECT_NE(message.find("context length"), std::string::npos) << message;
    EXPECT_NE(
        message.find(std::to_string(tokens_of("<|im_start|>user\n" + text.substr(0, text.size() - 1) +
                                              "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
                                        .size())),
        std::string::npos)
        << message;
  }
}

TEST(ChatRequests, Q109_TheThinkingBudgetUnderAllItsNames) {
  ScriptedServer server;
  server.write([](auto, const auto&) {
    Script script{.tokens = tokens_of("hm hm hm hm hm hm hm hm hm hm hm hm hm hm hm hm hm hm hm hm")};
    return script;
  });
  for (const Json& budget : {Json{{"thinking_budget", 5}}, Json{{"thinking_token_budget", 5}},
                             Json{{"reasoning", {{"max_tokens", 5}}}}}) {
    Json body = chat_body("?", budget);
    body["chat_template_kwargs"]["enable_thinking"] = true;
    body["max_tokens"] = 400;
    const Json json = server.chat(body).json();
    const Json& message = json.at("choices").at(0).at("message");
    EXPECT_LE(json.at("usage").at("completion_tokens_details").at("reasoning_tokens").get<int>(),
              5 + static_cast<int>(tokens_of("\n</think>\n\n").size()));
    EXPECT_FALSE(message.at("content").get<std::string>().empty());
    EXPECT_EQ(message.at("content").get<std::string>().find("think"), std::string::npos);
  }
}

TEST(ChatRequests, ThinkingCanBeSwitchedInEveryUsualWay) {
  ScriptedServer server;
  bool thinks = false;
  server.write([&](std::span<const Token> prompt, const auto&) {
    thinks = demo_tokenizer().decode(prompt).ends_with("<think>\n");
    return Script{.tokens = tokens_of("x")};
  });
  const auto thinks_with = [&](const Json& more) {
    Json body{{"messages", {{{"role", "user"}, {"content", "?"}}}}};
    body.update(more);
    const HttpAnswer answer = server.chat(body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return thinks;
  };
  EXPECT_TRUE(thinks_with(Json::object()));
  EXPECT_FALSE(thinks_with({{"chat_template_kwargs", {{"enable_thinking", false}}}}));
  EXPECT_FALSE(thinks_with({{"enable_thinking", false}}));
  EXPECT_FALSE(thinks_with({{"reasoning_effort", "none"}}));
  EXPECT_FALSE(thinks_with({{"reasoning", {{"effort", "none"}}}}));
  EXPECT_FALSE(thinks_with({{"reasoning", {{"enabled", false}}}}));
  EXPECT_TRUE(thinks_with({{"reasoning_effort", "low"}}));
  EXPECT_TRUE(
      thinks_with({{"reasoning_effort", "none"}, {"chat_template_kwargs", {{"enable_thinking", true}}}}))
      << "what is said for the template counts most";
  EXPECT_EQ(server.chat(chat_body("?", {{"reasoning_effort", "enormous"}})).json().at("error").at("param"),
            "reasoning_effort");
}

TEST(ChatRequests, Q065_TheServersOwnDefaultsOfThinking) {
  ApiOptions options;
  options.prompt = {.enable_thinking = false, .preserve_thinking = true};
  ScriptedServer server(options);
  std::string prompt;
  server.write([&](std::span<const Token> tokens, const auto&) {
    prompt = demo_tokenizer().decode(tokens);
    return Script{.tokens = tokens_of("x")};
  });
  const Json turn2 = {{"messages",
                       {{{"role", "user"}, {"content", "A"}},
                        {{"role", "assistant"}, {"reasoning_content", "r1"}, {"content", "b1"}},
                        {{"role", "user"}, {"content", "C"}}}}};
  ASSERT_EQ(server.chat(turn2).status, 200);
  EXPECT_NE(prompt.find("<think>\nr1\n</think>\n\nb1"), std::string::npos) << prompt;
  EXPECT_TRUE(prompt.ends_with("</think>\n\n")) << prompt;

  Json otherwise = turn2;
  otherwise["chat_template_kwargs"] = {{"preserve_thinking", false}, {"enable_thinking", true}};
  ASSERT_EQ(server.chat(otherwise).status, 200);
  EXPECT_EQ(prompt.find("r1"), std::string::npos) << "what a request says counts more: " << prompt;
  EXPECT_TRUE(prompt.ends_with("<think>\n")) << prompt;
}

TEST(ChatRequests, Q110_BadBytes) {
  ScriptedServer server;
  const auto post = [&](const std::string& body) {
    return ask(server.port(), "POST", "/v1/chat/completions", body);
  };
  for (const std::string& body :
       {std::string("{\"messages\": [{\"role\": \"user\", \"content\": \"\xFF\"}]}"), std::string(),
        std::string("{"), std::string("\xC4\xE3\xBA\xC3"), std::string("[1]"), std::string("null"),
        std::string(1000, '['), std::string("{\"messages\": 1e999}")}) {
    const HttpAnswer answer = post(body);
    EXPECT_EQ(answer.status, 400) << body << answer.body;
    EXPECT_EQ(answer.json().at("error").at("type"), "invalid_request_error");
  }
  std::string prompt;
  server.write([&](std::span<const Token> tokens, const auto&) {
    prompt = demo_tokenizer().decode(tokens);
    return Script{.tokens = tokens_of("ok")};
  });
  EXPECT_EQ(post(R"({"messages": [{"role": "user", "content": "a\ud83d"}]})").status, 200);
  EXPECT_NE(prompt.find("a\uFFFD<"), std::string::npos);
}

TEST(ChatRequests, WhatCannotBeHonouredIsRefusedByName) {
  ScriptedServer server;
  const Json fields =
      Json::parse(R"([["functions", [{"name": "f"}]], ["function_call", "auto"], ["audio", {"voice": "x"}],
      ["web_search_options", {}], ["guided_json", {}], ["temperature", "hot"], ["temperature", 3], ["top_p", 0], ["n", 99],
      ["stop", [1]], ["max_tokens", 0], ["max_tokens", 1.5], ["stream", "yes"], ["logit_bias", {"x": 1}], ["seed", "a"],
      ["min_p", 2], ["top_k", -5], ["presence_penalty", 9], ["tools", {}], ["stream_options", 1], ["reasoning", "high"],
      ["thinking_budget", -7], ["messages", 3], ["modalities", ["audio"]]])");
  for (const Json& field : fields) {
    const std::string name = field.at(0);
    const Json& value = field.at(1);
    const HttpAnswer answer = server.chat(chat_body("?", {{name, value}}));
    EXPECT_EQ(answer.status, 400) << name << value << answer.body;
    EXPECT_TRUE(answer.json().at("error").at("param").get<std::string>().starts_with(name)) << answer.body;
  }
  const Json image = Json::parse(
      R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})");
  EXPECT_EQ(server.chat(image).status, 400);
}

TEST(ChatRequests, SamplingFieldsReachTheModel) {
  ScriptedServer server;
  SamplingParams given;
  server.write([&](auto, const SamplingParams& params) {
    given = params;
    return Script{.tokens = tokens_of("x")};
  });
  server.chat(
      chat_body("?", Json::parse(R"({"temperature": 0.5, "top_p": 0.75, "top_k": 7, "min_p": 0.25, "seed": 11,
      "presence_penalty": 1.5, "frequency_penalty": -0.5, "repetition_penalty": 1.25, "logit_bias": {"5": -100, "6": 2}})")));
  EXPECT_EQ(given.temperature, 0.5F);
  EXPECT_EQ(given.top_p, 0.75F);
  EXPECT_EQ(given.top_k, 7);
  EXPECT_EQ(given.min_p, 0.25F);
  EXPECT_EQ(given.seed, 11U);
  EXPECT_EQ(given.presence_penalty, 1.5F);
  EXPECT_EQ(given.frequency_penalty, -0.5F);
  EXPECT_EQ(given.repetition_penalty, 1.25F);
  EXPECT_EQ(given.logit_bias, (std::vector<std::pair<Token, float>>{{5, -100.0F}, {6, 2.0F}}));
  server.chat(chat_body("?"));
  EXPECT_EQ(given.top_k, 20) << "the makers' recommendation";
  EXPECT_EQ(given.presence_penalty, 0.0F) << "nothing that was not asked for";
}

}  // namespace
}  // namespace calla
