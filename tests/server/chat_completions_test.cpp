// Chat completions over real sockets, before a model that says what the test wants.
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api_server.h"

namespace calla {
namespace {

using namespace test;
using std::chrono::milliseconds;

const Json& weather_tool() {
  static const Json tool =
      Json::parse(R"({"type": "function", "function": {"name": "get_weather", "parameters":
      {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}})");
  return tool;
}
const Json& echo_tool() {
  static const Json tool = Json::parse(R"({"type": "function", "function": {"name": "echo", "parameters":
      {"type": "object", "properties": {"text": {"type": "string"}}}}})");
  return tool;
}
const std::string weather_call =
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nMadrid\n</parameter>\n<parameter=days>\n3\n</"
    "parameter>\n"
    "</function>\n</tool_call>";
const std::string echo_call =
    "<tool_call>\n<function=echo>\n<parameter=text>\nhi\n</parameter>\n</function>\n</tool_call>";

Joined stream_of(const ScriptedServer& server, Json body) {
  body["stream"] = true;
  const HttpAnswer answer = server.chat(body);
  EXPECT_EQ(answer.status, 200) << answer.body;
  return join_stream(answer.body);
}

TEST(ChatCompletions, AnswersInOpenAisForm) {
  ScriptedServer server;
  server.say("The capital is Bangkok.");
  const HttpAnswer answer = server.chat(chat_body("Thailand?"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.header("content-type"), "application/json");
  const Json json = answer.json();
  EXPECT_TRUE(json.at("id").get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(json.at("object"), "chat.completion");
  EXPECT_GT(json.at("created").get<std::int64_t>(), 1700000000);
  EXPECT_EQ(json.at("model"), "demo");
  ASSERT_EQ(json.at("choices").size(), 1U);
  const Json& choice = json.at("choices").at(0);
  EXPECT_EQ(choice.at("index"), 0);
  EXPECT_EQ(choice.at("message"),
            Json::parse(R"({"role": "assistant", "content": "The capital is Bangkok."})"));
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(choice.at("logprobs"), nullptr);
  const Json& usage = json.at("usage");
  const auto completion = static_cast<int>(tokens_of("The capital is Bangkok.").size()) + 1;
  EXPECT_EQ(usage.at("completion_tokens"), completion);
  EXPECT_EQ(usage.at("total_tokens"), usage.at("prompt_tokens").get<int>() + completion);
}

TEST(ChatCompletions, StreamsRoleFirstAndDoneLast) {
  ScriptedServer server;
  server.say("The capital is Bangkok.");
  HttpClient client(server.port());
  const HttpAnswer answer =
      client.request("POST", "/v1/chat/completions", chat_body("?", {{"stream", true}}).dump());
  EXPECT_EQ(answer.header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(answer.header("cache-control"), "no-cache");
  const Joined joined = join_stream(answer.body);
  EXPECT_TRUE(joined.done);
  EXPECT_EQ(joined.content, "The capital is Bangkok.");
  EXPECT_EQ(joined.finish_reason, "stop");
  const Json& first = joined.chunks.front().at("choices").at(0).at("delta");
  EXPECT_EQ(first, Json::parse(R"({"role": "assistant", "content": ""})"));
  std::set<std::string> ids;
  std::set<std::int64_t> times;
  for (const Json& chunk : joined.chunks) {
    ids.insert(chunk.at("id"));
    times.insert(chunk.at("created").get<std::int64_t>());
    EXPECT_EQ(chunk.at("object"), "chat.completion.chunk");
    EXPECT_EQ(chunk.at("choices").size(), 1U) << "Q052: no chunk without a choice unless asked for";
    EXPECT_FALSE(chunk.contains("usage"));
  }
  EXPECT_EQ(ids.size(), 1U) << "one id for all chunks";
  EXPECT_EQ(times.size(), 1U);
  EXPECT_EQ(client.request("GET", "/health").status, 200) << "the connection goes on";
}

// Whatever the model writes: the deltas joined are the whole answer.
TEST(ChatCompletions, JoinedDeltasEqualTheWholeAnswer) {
  ScriptedServer server;
  const Json tools{{"tools", {weather_tool(), echo_tool()}}};
  const Json thinking{{"chat_template_kwargs", {{"enable_thinking", true}}},
                      {"tools", {weather_tool(), echo_tool()}}};
  const std::vector<std::pair<std::string, Json>> cases{
      {"Plain text.\n\nWith lines.", Json::object()},
      {"Because of this.\n</think>\n\nThe answer.", thinking},
      {weather_call, tools},
      {"Let me look.\n\n" + weather_call + "\n" + echo_call, tools},
      {"I need the weather.\n</think>\n\n" + weather_call, thinking},
      {"abc\n<tool_cake> done", tools},
      {"Half a thought", thinking},
      {"<tool_call>\n<function=nonsense", tools},
      {"", Json::object()},
  };
  for (const auto& [text, more] : cases) {
    for (const bool byte_by_byte : {false, true}) {
      SCOPED_TRACE(text + (byte_by_byte ? " (byte by byte)" : ""));
      std::vector<std::string> pieces;
      for (const char c : text) pieces.emplace_back(1, c);
      server.play({.tokens = byte_by_byte ? tokens_of_pieces(pieces) : tokens_of(text)});
      const HttpAnswer answer = server.chat(chat_body("?", more));
      ASSERT_EQ(answer.status, 200) << answer.body;
      const Json choice = answer.json().at("choices").at(0);
      const Joined joined = stream_of(server, chat_body("?", more));
      const Json& message = choice.at("message");
      EXPECT_EQ(joined.content,
                message.at("content").is_null() ? "" : message.at("content").get<std::string>());
      EXPECT_EQ(joined.reasoning, message.value("reasoning_content", ""));
      EXPECT_EQ(joined.finish_reason, choice.at("finish_reason"));
      const Json calls = message.value("tool_calls", Json::array());
      ASSERT_EQ(joined.tool_calls.size(), calls.size());
      for (std::size_t i = 0; i < calls.size(); ++i) {
        EXPECT_EQ(joined.tool_calls[i].at("name"), calls[i].at("function").at("name"));
        EXPECT_EQ(Json::parse(joined.tool_calls[i].at("arguments").get<std::string>()),
                  Json::parse(calls[i].at("function").at("arguments").get<std::string>()));
      }
    }
  }
}

TEST(ChatCompletions, Q031_AThoughtCutOffIsNoContent) {
  ScriptedServer server;
  server.play({.tokens = tokens_of("First I compare the two options."), .ends = false});
  Json body = chat_body("?", {{"max_tokens", 4}});
  body["chat_template_kwargs"]["enable_thinking"] = true;
  const Json choice = server.chat(body).json().at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("content"), nullptr);
  EXPECT_FALSE(choice.at("message").at("reasoning_content").get<std::string>().empty());
  EXPECT_EQ(choice.at("finish_reason"), "length");
}

TEST(ChatCompletions, Q035_ACallCutOffIsNotExecutable) {
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

TEST(ChatCompletions, Q046_Q047_CharactersAreNeverCut) {
  ScriptedServer server;
  for (const std::string text : {"ob \U0001F600!", "ห้าม"}) {
    std::vector<Token> bytes;
    for (const char c : text) {
      for (Token token = 0; token < demo_tokenizer().size(); ++token) {
        if (demo_tokenizer().bytes(token) == std::string_view(&c, 1)) {
          bytes.push_back(token);
          break;
        }
      }
    }
    ASSERT_EQ(bytes.size(), text.size());
    server.play({.tokens = bytes});
    const Joined joined = stream_of(server, chat_body("?"));
    EXPECT_EQ(joined.content, text);
    for (const Json& chunk : joined.chunks) {
      const std::string piece = chunk.at("choices").at(0).at("delta").value("content", "");
      EXPECT_EQ(piece.find("\uFFFD"), std::string::npos);
    }
  }
}

TEST(ChatCompletions, Q049_Q050_StopStringsAcrossPieces) {
  ScriptedServer server;
  server.play({.tokens = tokens_of_pieces({"The quick br", "own", " fox jumps"}), .ends = false});
  for (const bool stream : {false, true}) {
    const Json body = chat_body("?", {{"stop", {"own fox"}}, {"max_tokens", 50}});
    if (stream) {
      const Joined joined = stream_of(server, body);
      EXPECT_EQ(joined.content, "The quick br");
      EXPECT_EQ(joined.finish_reason, "stop");
    } else {
      const Json choice = server.chat(body).json().at("choices").at(0);
      EXPECT_EQ(choice.at("message").at("content"), "The quick br");
      EXPECT_EQ(choice.at("finish_reason"), "stop");
    }
  }
  server.play({.tokens = tokens_of_pieces({"x</end", "ing> y", "z</e"})});
  EXPECT_EQ(stream_of(server, chat_body("?", {{"stop", "</end>"}})).content, "x</ending> yz</e");
}

TEST(ChatCompletions, Q052_UsageOnlyOnRequest) {
  ScriptedServer server;
  for (const Json& options : {Json(nullptr), Json::object(), Json{{"include_usage", false}}}) {
    const Joined joined = stream_of(server, chat_body("?", {{"stream_options", options}}));
    EXPECT_TRUE(joined.usage.is_null());
    for (const Json& chunk : joined.chunks) EXPECT_EQ(chunk.at("choices").size(), 1U);
  }
  const Joined joined = stream_of(server, chat_body("?", {{"stream_options", {{"include_usage", true}}}}));
  int without_choice = 0;
  for (const Json& chunk : joined.chunks) without_choice += chunk.at("choices").empty() ? 1 : 0;
  EXPECT_EQ(without_choice, 1);
  EXPECT_TRUE(joined.chunks.back().at("choices").empty()) << "just before [DONE]";
  for (const char* count : {"prompt_tokens", "completion_tokens", "total_tokens"}) {
    EXPECT_TRUE(joined.usage.at(count).is_number_integer()) << count;
  }
}

TEST(ChatCompletions, Q053_ToolCallDeltasHaveTheFormThatSdksExpect) {
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

TEST(ChatCompletions, Q044_NothingComesBetweenThePiecesOfACall) {
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

TEST(ChatCompletions, Q055_ACommentComesWhileNothingElseDoes) {
  ApiOptions options;
  options.server.keep_alive = Seconds(0.1);
  ScriptedServer server(options);
  server.control().prefill_micros = 700'000;  // one piece that cannot be interrupted
  HttpClient client(server.port());
  client.send_request("POST", "/v1/chat/completions", chat_body("?", {{"stream", true}}).dump());
  EXPECT_EQ(client.read_answer(true).status, 200) << "headers come at once";
  EXPECT_EQ(server.control().pieces, 0);
  std::string text;
  while (const auto line = client.read_line()) text += *line + "\n";
  EXPECT_GE(read_events(text).comments, 2);
  EXPECT_EQ(join_stream(text).content, "Hello.");
}

TEST(ChatCompletions, Q056_LongArgumentsAreStreamedAsTheyCome) {
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

TEST(ChatCompletions, Q068_Q073_HistoryWithToolsIsTaken) {
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

TEST(ChatCompletions, Q058_Q059_Q062_Q067_WhatAgentsSendIsTaken) {
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

TEST(ChatCompletions, Q071_NoMessagesIsARefusalThatNamesThem) {
  ScriptedServer server;
  for (const char* messages : {"[]", R"([{"role": "system", "content": "A"}])"}) {
    const HttpAnswer answer = server.chat({{"messages", Json::parse(messages)}});
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.json().at("error").at("type"), "invalid_request_error");
    EXPECT_EQ(answer.json().at("error").at("param"), "messages");
    EXPECT_EQ(answer.json().at("error").at("message").get<std::string>().find('\n'), std::string::npos);
  }
}

TEST(ChatCompletions, Q074_TheNewNameOfTheTokenLimitCounts) {
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

TEST(ChatCompletions, Q076_EmptyAndNullFieldsChangeNothing) {
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

TEST(ChatCompletions, Q077_NoCallWhereNoneIsAllowed) {
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

TEST(ChatCompletions, Q077_ARequiredCallIsBegunForTheModel) {
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

TEST(ChatCompletions, Q077_ARequiredCallComesAfterTheReasoning) {
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

TEST(ChatCompletions, Q077_ChoicesThatMakeNoSenseAreRefused) {
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

TEST(ChatCompletions, OneCallIsEnoughWithoutParallelCalls) {
  ScriptedServer server;
  server.say(weather_call + "\n" + echo_call);
  const Json body =
      chat_body("?", {{"tools", {weather_tool(), echo_tool()}}, {"parallel_tool_calls", false}});
  const Json choice = server.chat(body).json().at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("tool_calls").size(), 1U);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_EQ(stream_of(server, body).tool_calls.size(), 1U);
}

TEST(ChatCompletions, Q080_OtherResponseFormatsAreRefusedByName) {
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

TEST(ChatCompletions, Q082_AnOverflowIsARefusalWithBothNumbers) {
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

TEST(ChatCompletions, Q083_AClientThatGoesAwayFreesTheSlot) {
  ApiOptions options;
  options.slots = 1;
  for (const bool stream : {true, false}) {
    for (const bool in_prefill : {false, true}) {
      SCOPED_TRACE(fmt::format("stream {}, prefill {}", stream, in_prefill));
      ScriptedServer server(options);
      server.play({.tokens = tokens_of("on and on"), .ends = false});
      (in_prefill ? server.control().prefill_micros : server.control().step_micros) = 20'000;
      std::string text = "?";
      if (in_prefill) {
        for (int i = 0; i < 1500; ++i) text += " x";
      }
      HttpClient client(server.port());
      client.send_request("POST", "/v1/chat/completions", chat_body(text, {{"stream", stream}}).dump());
      ASSERT_TRUE(
          eventually([&] { return in_prefill ? server.control().pieces > 2 : server.control().steps > 2; }));
      const int worked = in_prefill ? server.control().pieces : server.control().steps;
      client.close();
      ASSERT_TRUE(eventually([&] { return server.api().engine().stats().busy == 0; }));
      const int more = (in_prefill ? server.control().pieces : server.control().steps) - worked;
      EXPECT_LT(more, 12) << "at 20 ms each; it would have been many more";
      EXPECT_FALSE(server.api().log_line_with("status=499").empty());
      server.control().step_micros = 0;
      server.control().prefill_micros = 0;
      server.say("Still here.");
      EXPECT_EQ(server.chat(chat_body("?")).json().at("choices").at(0).at("message").at("content"),
                "Still here.");
    }
  }
}

TEST(ChatCompletions, AClientThatWaitsForASlotMayLeaveToo) {
  ApiOptions options;
  options.slots = 1;
  ScriptedServer server(options);
  server.play({.tokens = tokens_of("on and on"), .ends = false});
  server.control().step_micros = 1000;
  HttpClient first(server.port());
  first.send_request("POST", "/v1/chat/completions", chat_body("?").dump());
  ASSERT_TRUE(eventually([&] { return server.api().engine().stats().busy == 1; }));
  HttpClient second(server.port());
  second.send_request("POST", "/v1/chat/completions", chat_body("?").dump());
  ASSERT_TRUE(eventually([&] { return server.api().engine().stats().waiting == 1; }));
  second.abort();
  EXPECT_TRUE(eventually([&] { return server.api().engine().stats().waiting == 0; }));
  EXPECT_EQ(server.api().engine().stats().busy, 1) << "the other goes on";
}

TEST(ChatCompletions, AFullQueueIs429) {
  ApiOptions options;
  options.slots = 1;
  options.engine.queue_limit = 0;
  ScriptedServer server(options);
  server.play({.tokens = tokens_of("on and on"), .ends = false});
  server.control().step_micros = 1000;
  HttpClient first(server.port());
  first.send_request("POST", "/v1/chat/completions", chat_body("?").dump());
  ASSERT_TRUE(eventually([&] { return server.api().engine().stats().busy == 1; }));
  const HttpAnswer answer = server.chat(chat_body("?", {{"stream", true}}));
  EXPECT_EQ(answer.status, 429);
  EXPECT_GE(std::stoi(answer.header("retry-after")), 1);
  EXPECT_EQ(answer.json().at("error").at("code"), "queue_full");
}

TEST(ChatCompletions, Q086_AnswersGoToWhoAsked) {
  ScriptedServer server;
  server.write([](std::span<const Token> prompt, const auto&) {
    const std::string text = demo_tokenizer().decode(prompt);
    const std::size_t at = text.find("secret-");
    return Script{.tokens = tokens_of("The word is " + text.substr(at, text.find('<', at) - at))};
  });
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 10; ++i) {
        const std::string secret = fmt::format("secret-{}-{}", c, i);
        const Json body = chat_body(secret, {{"stream", i % 2 == 0}});
        const HttpAnswer answer = server.chat(body);
        const std::string content =
            i % 2 == 0 ? join_stream(answer.body).content
                       : answer.json().at("choices").at(0).at("message").at("content").get<std::string>();
        if (content == "The word is " + secret) ++right;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 80);
  EXPECT_EQ(server.control().largest_batch, 2) << "slots are decoded together";
}

TEST(ChatCompletions, Q103_SeveralChoices) {
  ScriptedServer server;
  std::vector<std::uint64_t> seeds;
  server.write([&](auto, const SamplingParams& params) {
    seeds.push_back(params.seed);
    return Script{.tokens = tokens_of(fmt::format("choice {}", params.seed))};
  });
  const Json json = server.chat(chat_body("?", {{"n", 3}, {"seed", 40}})).json();
  ASSERT_EQ(json.at("choices").size(), 3U);
  int completion = 0;
  for (int i = 0; i < 3; ++i) {
    const Json& choice = json.at("choices").at(static_cast<std::size_t>(i));
    EXPECT_EQ(choice.at("index"), i);
    EXPECT_EQ(choice.at("message").at("content"), fmt::format("choice {}", 40 + i));
    completion += static_cast<int>(tokens_of(fmt::format("choice {}", 40 + i)).size()) + 1;
  }
  EXPECT_EQ(json.at("usage").at("completion_tokens"), completion) << "of all choices";

  const HttpAnswer streamed = server.chat(chat_body("?", {{"n", 3}, {"seed", 40}, {"stream", true}}));
  for (int i = 0; i < 3; ++i) {
    const Joined joined = join_stream(streamed.body, i);
    EXPECT_EQ(joined.role, "assistant");
    EXPECT_EQ(joined.content, fmt::format("choice {}", 40 + i));
    EXPECT_EQ(joined.finish_reason, "stop");
  }
  const HttpAnswer none = server.chat(chat_body("?", {{"n", 0}, {"stream", true}}));
  EXPECT_EQ(none.status, 400);
  EXPECT_EQ(none.json().at("error").at("param"), "n");
}

TEST(ChatCompletions, Q104_Logprobs) {
  ScriptedServer server;
  server.say("Yes.");
  const auto check = [&](const Json& content) {
    ASSERT_EQ(content.size(), tokens_of("Yes.").size());
    std::string text;
    for (const Json& entry : content) {
      EXPECT_LE(entry.at("logprob").get<double>(), 0);
      EXPECT_EQ(entry.at("top_logprobs").size(), 2U);
      EXPECT_EQ(entry.at("top_logprobs").at(0).at("bytes"), entry.at("bytes"));
      for (const Json& byte : entry.at("bytes")) text += static_cast<char>(byte.get<int>());
    }
    EXPECT_EQ(text, "Yes.");
  };
  const Json body = chat_body("?", {{"logprobs", true}, {"top_logprobs", 2}});
  check(server.chat(body).json().at("choices").at(0).at("logprobs").at("content"));
  Json streamed = Json::array();
  for (const Json& chunk : stream_of(server, body).chunks) {
    for (const Json& entry : chunk.at("choices").at(0).at("logprobs").at("content"))
      streamed.push_back(entry);
  }
  check(streamed);
  EXPECT_EQ(server.chat(chat_body("?", {{"top_logprobs", 2}})).json().at("error").at("param"),
            "top_logprobs");
  EXPECT_EQ(server.chat(chat_body("?", {{"logprobs", true}, {"top_logprobs", 21}})).status, 400);
}

TEST(ChatCompletions, ReasoningHasLogprobsOfItsOwn) {
  ScriptedServer server;
  server.say("So.\n</think>\n\nYes.");
  Json body = chat_body("?", {{"logprobs", true}});
  body["chat_template_kwargs"]["enable_thinking"] = true;
  const Json logprobs = server.chat(body).json().at("choices").at(0).at("logprobs");
  EXPECT_FALSE(logprobs.at("reasoning_content").empty());
  EXPECT_EQ(logprobs.at("content").at(0).at("top_logprobs"), Json::array());
}

TEST(ChatCompletions, Q106_CallIdsAreUnique) {
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

TEST(ChatCompletions, Q107_UsageHasItsDetails) {
  ScriptedServer server;
  server.say("A thought.\n</think>\n\nYes.");
  Json body = chat_body("?");
  body["chat_template_kwargs"]["enable_thinking"] = true;
  const Json usage = server.chat(body).json().at("usage");
  EXPECT_GT(usage.at("completion_tokens_details").at("reasoning_tokens").get<int>(), 0);
  EXPECT_LT(usage.at("completion_tokens_details").at("reasoning_tokens"), usage.at("completion_tokens"));
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens"), 0);
}

TEST(ChatCompletions, Q109_TheThinkingBudgetUnderAllItsNames) {
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

TEST(ChatCompletions, ThinkingCanBeSwitchedInEveryUsualWay) {
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

TEST(ChatCompletions, Q065_TheServersOwnDefaultsOfThinking) {
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

TEST(ChatCompletions, Q110_BadBytes) {
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

TEST(ChatCompletions, WhatCannotBeHonouredIsRefusedByName) {
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

TEST(ChatCompletions, AFaultOfTheDeviceIsToldOnce) {
  ScriptedServer server;
  server.say("some words that take a few steps");
  server.control().fail_at_step = 2;
  const HttpAnswer whole = server.chat(chat_body("?"));
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.json().at("error").at("code"), "generation_failed");

  server.control().fail_at_step = 2;
  const HttpAnswer streamed =
      server.chat(chat_body("?", {{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  EXPECT_EQ(streamed.status, 200);
  const Events events = read_events(streamed.body);
  EXPECT_EQ(events.data.back(), "[DONE]");
  const Json error = Json::parse(events.data[events.data.size() - 2]);
  EXPECT_NE(error.at("error").at("message").get<std::string>().find("the device is lost"), std::string::npos);
  EXPECT_EQ(server.chat(chat_body("?")).status, 200) << "the next one is served";
}

TEST(ChatCompletions, SamplingFieldsReachTheModel) {
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
