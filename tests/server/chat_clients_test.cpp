// Chat completions for many clients: who waits, who leaves, who is told of a fault.
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "chat_support.h"

namespace calla {
namespace {

using namespace test;

TEST(ChatClients, Q055_ACommentComesWhileNothingElseDoes) {
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

TEST(ChatClients, Q083_AClientThatGoesAwayFreesTheSlot) {
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

/// A client whose answer does not end has the only slot.
void occupy(ScriptedServer& server, HttpClient& client) {
  server.play({.tokens = tokens_of("on and on"), .ends = false});
  server.control().step_micros = 1000;
  client.send_request("POST", "/v1/chat/completions", chat_body("?").dump());
  ASSERT_TRUE(eventually([&] { return server.api().engine().stats().busy == 1; }));
}

TEST(ChatClients, AClientThatWaitsForASlotMayLeaveToo) {
  ApiOptions options;
  options.slots = 1;
  ScriptedServer server(options);
  HttpClient first(server.port());
  ASSERT_NO_FATAL_FAILURE(occupy(server, first));
  HttpClient second(server.port());
  second.send_request("POST", "/v1/chat/completions", chat_body("?").dump());
  ASSERT_TRUE(eventually([&] { return server.api().engine().stats().waiting == 1; }));
  second.abort();
  EXPECT_TRUE(eventually([&] { return server.api().engine().stats().waiting == 0; }));
  EXPECT_EQ(server.api().engine().stats().busy, 1) << "the other goes on";
}

TEST(ChatClients, AFullQueueIs429) {
  ApiOptions options;
  options.slots = 1;
  options.engine.queue_limit = 0;
  ScriptedServer server(options);
  HttpClient first(server.port());
  ASSERT_NO_FATAL_FAILURE(occupy(server, first));
  const HttpAnswer answer = server.chat(chat_body("?", {{"stream", true}}));
  EXPECT_EQ(answer.status, 429);
  EXPECT_GE(std::stoi(answer.header("retry-after")), 1);
  EXPECT_EQ(answer.json().at("error").at("code"), "queue_full");
}

TEST(ChatClients, Q086_AnswersGoToWhoAsked) {
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

TEST(ChatClients, AFaultOfTheDeviceIsToldOnce) {
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

}  // namespace
}  // namespace calla
