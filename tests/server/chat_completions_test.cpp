// Chat completions over real sockets, before a model that says what the test wants: the form of answers.
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "chat_support.h"

namespace calla {
namespace {

using namespace test;

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
      EXPECT_EQ(joined.finish_reason, choice.at("finish_reason").get<std::string>());
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

}  // namespace
}  // namespace calla
