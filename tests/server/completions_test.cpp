// Raw completions, and the tokenizer's endpoints.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api_server.h"

namespace calla {
namespace {

using namespace test;

/// Goes on with the last token of the prompt and one of its own.
void echo_prompts(ScriptedServer& server) {
  server.write([](std::span<const Token> prompt, const auto&) {
    std::vector<Token> tokens(prompt.begin(), prompt.end());
    const std::vector<Token> more = tokens_of("!");
    tokens.insert(tokens.end(), more.begin(), more.end());
    return Script{.tokens = tokens};
  });
}

std::string text_of(const HttpAnswer& stream, int index) {
  std::string text;
  for (const std::string& data : read_events(stream.body).data) {
    if (data == "[DONE]") continue;
    for (const Json& choice : Json::parse(data).value("choices", Json::array())) {
      if (choice.at("index") == index) text += choice.at("text").get<std::string>();
    }
  }
  return text;
}

TEST(Completions, GoesOnWithAPromptAsItStands) {
  ScriptedServer server;
  echo_prompts(server);
  const std::string prompt = "<|im_start|>user\nHi";
  const HttpAnswer answer = server.post("/v1/completions", {{"prompt", prompt}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = answer.json();
  EXPECT_TRUE(json.at("id").get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(json.at("object"), "text_completion");
  const auto length = static_cast<int>(tokens_of(prompt).size());
  EXPECT_EQ(json.at("choices"),
            Json::array(
                {{{"text", prompt + "!"}, {"index", 0}, {"logprobs", nullptr}, {"finish_reason", "stop"}}}));
  EXPECT_EQ(json.at("usage").at("prompt_tokens"), length) << "control tokens are such, and nothing is added";
  EXPECT_EQ(json.at("usage").at("completion_tokens"), length + 2);
}

TEST(Completions, TakesEveryFormOfAPrompt) {
  ScriptedServer server;
  echo_prompts(server);
  const std::vector<Token> ids = tokens_of("one two");
  for (const Json& prompt : {Json("one two"), Json(ids), Json::array({"one two"}), Json::array({ids})}) {
    const HttpAnswer answer = server.post("/v1/completions", {{"prompt", prompt}});
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.json().at("choices").at(0).at("text"), "one two!");
  }
  const Json several = server.post("/v1/completions", {{"prompt", {"one", "two"}}, {"n", 2}}).json();
  ASSERT_EQ(several.at("choices").size(), 4U);
  const std::array<const char*, 4> expected{"one!", "one!", "two!", "two!"};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(several.at("choices").at(i).at("index"), i);
    EXPECT_EQ(several.at("choices").at(i).at("text"), expected.at(i));
  }
  EXPECT_EQ(several.at("usage").at("prompt_tokens"), tokens_of("one").size() + tokens_of("two").size())
      << "each prompt once";
}

TEST(Completions, StreamsWhatItAnswersWhole) {
  ScriptedServer server;
  server.play({.tokens = tokens_of("a text of <b>some</b> words, </think> and tags")});
  const std::string whole = server.post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 100}})
                                .json()
                                .at("choices")
                                .at(0)
                                .at("text");
  EXPECT_EQ(whole, "a text of <b>some</b> words, </think> and tags");
  const HttpAnswer stream = server.post("/v1/completions", {{"prompt", "x"},
                                                            {"max_tokens", 100},
                                                            {"stream", true},
                                                            {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(text_of(stream, 0), whole);
  const Events events = read_events(stream.body);
  EXPECT_EQ(events.data.back(), "[DONE]");
  const Json last = Json::parse(events.data[events.data.size() - 2]);
  EXPECT_EQ(last.at("choices"), Json::array());
  EXPECT_GT(last.at("usage").at("completion_tokens"), 5);
  EXPECT_EQ(Json::parse(events.data[events.data.size() - 3]).at("choices").at(0).at("finish_reason"), "stop");
}

TEST(Completions, EchoesThePromptIfAsked) {
  ScriptedServer server;
  server.say(" three");
  const Json body{{"prompt", "one two"}, {"echo", true}};
  EXPECT_EQ(server.post("/v1/completions", body).json().at("choices").at(0).at("text"), "one two three");
  Json streamed = body;
  streamed["stream"] = true;
  EXPECT_EQ(text_of(server.post("/v1/completions", streamed), 0), "one two three");
}

TEST(Completions, StopsAtSixteenTokensUnlessToldOtherwise) {
  ScriptedServer server;
  server.play({.tokens = tokens_of("x"), .ends = false});
  const auto tokens = [&](const Json& more) {
    Json body{{"prompt", "x"}};
    body.update(more);
    const Json json = server.post("/v1/completions", body).json();
    EXPECT_EQ(json.at("choices").at(0).at("finish_reason"), "length");
    return json.at("usage").at("completion_tokens").get<int>();
  };
  EXPECT_EQ(tokens(Json::object()), 16);
  EXPECT_EQ(tokens({{"max_tokens", 3}}), 3);
  EXPECT_EQ(tokens({{"max_tokens", -1}}), 2048 - 1);
}

TEST(Completions, LogprobsInTheOlderForm) {
  ScriptedServer server;
  server.say("Yes no");
  const Json logprobs = server.post("/v1/completions", {{"prompt", "x"}, {"logprobs", 2}})
                            .json()
                            .at("choices")
                            .at(0)
                            .at("logprobs");
  const std::size_t count = tokens_of("Yes no").size();
  std::string text;
  for (const Json& token : logprobs.at("tokens")) text += token.get<std::string>();
  EXPECT_EQ(text, "Yes no");
  EXPECT_EQ(logprobs.at("token_logprobs").size(), count);
  EXPECT_EQ(logprobs.at("top_logprobs").at(0).size(), 2U);
  EXPECT_EQ(logprobs.at("text_offset").at(0), 0);
  EXPECT_EQ(logprobs.at("text_offset").at(1), logprobs.at("tokens").at(0).get<std::string>().size());
}

TEST(Completions, StopStringsEndIt) {
  ScriptedServer server;
  server.say("one two three");
  const Json choice =
      server.post("/v1/completions", {{"prompt", "x"}, {"stop", {"two"}}}).json().at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "one ");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
}

TEST(Completions, RefusesByName) {
  ScriptedServer server;
  const Json cases = Json::parse(R"([[{}, "prompt"], [{"prompt": null}, "prompt"], [{"prompt": 5}, "prompt"],
      [{"prompt": ""}, "prompt"], [{"prompt": []}, "prompt"], [{"prompt": [1, -1]}, "prompt[1]"],
      [{"prompt": [[1], [999999]]}, "prompt[1][0]"], [{"prompt": ["a", 1]}, "prompt[1]"], [{"prompt": "x", "suffix": "y"}, "suffix"],
      [{"prompt": "x", "best_of": 3}, "best_of"], [{"prompt": "x", "echo": true, "logprobs": 1}, "logprobs"],
      [{"prompt": "x", "n": 17}, "n"], [{"prompt": ["a", "b", "c"], "n": 6}, "n"], [{"prompt": "x", "temperature": -1}, "temperature"]])");
  for (const Json& one : cases) {
    const HttpAnswer answer = server.post("/v1/completions", one.at(0));
    EXPECT_EQ(answer.status, 400) << one;
    EXPECT_EQ(answer.json().at("error").at("param"), one.at(1)) << answer.body;
  }
  const HttpAnswer long_prompt = server.post("/v1/completions", {{"prompt", std::vector<Token>(5000, 1)}});
  EXPECT_EQ(long_prompt.json().at("error").at("code"), "context_length_exceeded");
  EXPECT_EQ(
      server.post("/v1/completions", {{"prompt", "x"}, {"suffix", nullptr}, {"best_of", 1}, {"n", 1}}).status,
      200);
}

TEST(Completions, AFaultInTheStreamIsAnEvent) {
  ScriptedServer server;
  server.say("some words that take a few steps");
  server.control().fail_at_step = 2;
  const Events events = read_events(server.post("/v1/completions", {{"prompt", "x"}, {"stream", true}}).body);
  EXPECT_EQ(events.data.back(), "[DONE]");
  EXPECT_TRUE(Json::parse(events.data[events.data.size() - 2]).contains("error"));
}

TEST(Tokenize, BothWays) {
  ScriptedServer server;
  const Json answer = server.post("/tokenize", {{"content", "Hello, world!"}}).json();
  EXPECT_EQ(answer,
            Json::parse(R"({"tokens": [1357, 11, 293, 500, 631, 0], "count": 6, "max_model_len": 2048})"));
  EXPECT_EQ(server.post("/tokenize", {{"prompt", "Hello, world!"}}).json(), answer);
  EXPECT_EQ(server.post("/detokenize", {{"tokens", answer.at("tokens")}}).json(),
            Json::parse(R"({"content": "Hello, world!"})"));
}

TEST(Tokenize, ControlTokensOnlyIfAsked) {
  ScriptedServer server;
  EXPECT_GT(server.post("/tokenize", {{"content", "<|im_end|>"}}).json().at("count"), 1);
  EXPECT_EQ(
      server.post("/tokenize", {{"content", "<|im_end|>"}, {"parse_special", true}}).json().at("tokens"),
      Json({2422}));
}

TEST(Tokenize, CountsAConversation) {
  ScriptedServer server;
  const Json body = chat_body("How long is this?");
  EXPECT_EQ(server.post("/tokenize", body).json().at("count"),
            server.chat(body).json().at("usage").at("prompt_tokens"));
}

TEST(Tokenize, RefusesByName) {
  ScriptedServer server;
  EXPECT_EQ(server.post("/tokenize", Json::object()).json().at("error").at("param"), "content");
  EXPECT_EQ(server.post("/tokenize", {{"content", 1}}).json().at("error").at("param"), "content");
  EXPECT_EQ(server.post("/detokenize", {{"tokens", {1, "x"}}}).json().at("error").at("param"), "tokens[1]");
  EXPECT_EQ(server.post("/detokenize", {{"tokens", {2446}}}).json().at("error").at("param"), "tokens[0]");
}

}  // namespace
}  // namespace calla
