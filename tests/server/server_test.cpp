// Who may ask for what, and the server's life from loading to its end.
#include "server/server.h"

#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api_server.h"
#include "server/auth.h"
#include "server/cors.h"
#include "server/host_check.h"

namespace calla::server {
namespace {

using namespace test;
using std::chrono::milliseconds;

TEST(Server, Q092_HealthTellsTheTruthWhileLoading) {
  ApiOptions options;
  options.open = false;
  ScriptedServer server(options);
  HttpAnswer health = ask(server.port(), "GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json(), Json::parse(R"({"status": "loading", "progress": 0.0})"));
  server.api().server().show_loading(250, 1000);
  EXPECT_EQ(ask(server.port(), "GET", "/health").json().at("progress"), 0.25);

  const HttpAnswer early = server.chat(chat_body("?"));
  EXPECT_EQ(early.status, 503);
  EXPECT_EQ(early.header("retry-after"), "2");
  EXPECT_EQ(early.json().at("error").at("code"), "model_loading");
  EXPECT_EQ(ask(server.port(), "GET", "/v1/models").status, 503);
  EXPECT_EQ(ask(server.port(), "GET", "/").status, 200) << "the page is there already";
  EXPECT_EQ(ask(server.port(), "GET", "/metrics").status, 200);

  server.api().open();
  health = ask(server.port(), "GET", "/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.json().at("status"), "ok");
  EXPECT_EQ(health.json().at("slots"), 2);
  EXPECT_EQ(server.chat(chat_body("?")).status, 200);
}

TEST(Server, SaysThatItsDeviceIsLost) {
  ScriptedServer server;
  server.control().lost = true;
  const HttpAnswer first = server.chat(chat_body("?"));
  EXPECT_EQ(first.status, 500);
  const HttpAnswer health = ask(server.port(), "GET", "/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json(), Json::parse(R"({"status": "failed", "error": "the GPU: is lost"})"));
  const HttpAnswer refused = server.chat(chat_body("?"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json().at("error").at("code"), "device_lost");
}

TEST(Server, Q092_Keys) {
  ApiOptions options;
  options.server.api_keys = {"secret", "other"};
  ScriptedServer server(options);
  const auto with = [&](const HttpClient::Headers& more, const char* path = "/v1/chat/completions") {
    HttpClient::Headers headers{{"Content-Type", "application/json"}};
    headers.insert(headers.end(), more.begin(), more.end());
    return ask(server.port(), "POST", path, chat_body("?").dump(), headers);
  };
  EXPECT_EQ(ask(server.port(), "GET", "/health").status, 200);
  EXPECT_EQ(ask(server.port(), "GET", "/").status, 200);
  for (const char* path : {"/v1/models", "/metrics"})
    EXPECT_EQ(ask(server.port(), "GET", path).status, 401) << path;
  const HttpAnswer refused = with({});
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.json().at("error").at("type"), "authentication_error");
  EXPECT_EQ(refused.json().at("error").at("code"), "invalid_api_key");
  EXPECT_EQ(with({{"Authorization", "Bearer wrong"}}).status, 401);
  EXPECT_EQ(with({{"Authorization", "Bearer "}}).status, 401);
  EXPECT_EQ(with({{"Authorization", "secret"}}).status, 401);
  EXPECT_EQ(with({{"Authorization", "Bearer secret"}}).status, 200);
  EXPECT_EQ(with({{"Authorization", "bearer other"}}).status, 200);
  EXPECT_EQ(with({{"x-api-key", "secret"}}).status, 200);

  ScriptedServer open;
  EXPECT_EQ(ask(open.port(), "GET", "/v1/models", "", {{"Authorization", "Bearer anything"}}).status, 200)
      << "without a key of its own it takes any";
}

TEST(Server, Q091_Cors) {
  ApiOptions options;
  options.server.api_keys = {"k"};
  options.server.cors_origins = {"https://app.example"};
  ScriptedServer server(options);
  const HttpClient::Headers origin{{"Content-Type", "application/json"}, {"Origin", "https://app.example"}};
  HttpClient::Headers preflight = origin;
  preflight.emplace_back("Access-Control-Request-Method", "POST");
  preflight.emplace_back("Access-Control-Request-Headers", "authorization, content-type, x-stainless-os");
  const HttpAnswer allowed = ask(server.port(), "OPTIONS", "/v1/chat/completions", "", preflight);
  EXPECT_EQ(allowed.status, 204) << "without a key";
  EXPECT_EQ(allowed.header("access-control-allow-origin"), "https://app.example");
  EXPECT_NE(allowed.header("access-control-allow-methods").find("POST"), std::string::npos);
  for (const char* name : {"Authorization", "X-Api-Key", "x-stainless-os"}) {
    EXPECT_NE(allowed.header("access-control-allow-headers").find(name), std::string::npos) << name;
  }
  HttpClient::Headers keyed = origin;
  keyed.emplace_back("Authorization", "Bearer k");
  for (const bool stream : {false, true}) {
    const HttpAnswer answer = ask(server.port(), "POST", "/v1/chat/completions",
                                  chat_body("?", {{"stream", stream}}).dump(), keyed);
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.header("access-control-allow-origin"), "https://app.example");
    EXPECT_EQ(answer.header("vary"), "Origin");
  }
  const HttpAnswer refused = ask(server.port(), "POST", "/v1/chat/completions", "{}", origin);
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header("access-control-allow-origin"), "https://app.example")
      << "so that the page can read why";
  EXPECT_EQ(ask(server.port(), "OPTIONS", "/v1/models", "", {{"Origin", "https://evil.example"}})
                .header("access-control-allow-origin"),
            "");

  ScriptedServer closed;
  const HttpAnswer none =
      ask(closed.port(), "OPTIONS", "/v1/models", "", {{"Origin", "https://app.example"}});
  EXPECT_EQ(none.status, 204);
  EXPECT_EQ(none.header("access-control-allow-origin"), "") << "off unless asked for";
  EXPECT_EQ(none.header("allow"), "GET, OPTIONS");
}

TEST(Server, NamesWhatIsNotThere) {
  ScriptedServer server;
  const HttpAnswer missing = ask(server.port(), "GET", "/v2/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.json().at("error").at("code"), "not_found");
  EXPECT_EQ(ask(server.port(), "GET", "/../etc/passwd").status, 404);
  EXPECT_EQ(ask(server.port(), "GET", "/index.html").status, 404);
  const HttpAnswer wrong = ask(server.port(), "GET", "/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "POST, OPTIONS");
  EXPECT_EQ(ask(server.port(), "DELETE", "/v1/models").status, 405);
  EXPECT_EQ(ask(server.port(), "POST", "/v1/chat/completions?beta=true", chat_body("?").dump()).status, 200)
      << "a query is ignored";
}

TEST(Server, TakesJsonAlone) {
  ScriptedServer server;
  const std::string body = chat_body("?").dump();
  const auto status = [&](const HttpClient::Headers& headers) {
    return ask(server.port(), "POST", "/v1/chat/completions", body, headers).status;
  };
  EXPECT_EQ(status({{"Content-Type", "application/json; charset=utf-8"}}), 200);
  EXPECT_EQ(status({{"Content-Type", "Application/JSON"}}), 200);
  EXPECT_EQ(status({{"Content-Type", "text/plain"}}), 415) << "what a page of another site can send";
  EXPECT_EQ(status({{"Content-Type", "application/x-www-form-urlencoded"}}), 415);
  EXPECT_EQ(status({}), 415);
}

TEST(Server, RefusesANameThatAnotherSiteMayHave) {
  EXPECT_TRUE(is_local_host("localhost:8080"));
  EXPECT_TRUE(is_local_host("127.0.0.1"));
  EXPECT_TRUE(is_local_host("[::1]:8080"));
  EXPECT_TRUE(is_local_host("host.docker.internal:8080"));
  EXPECT_FALSE(is_local_host("evil.example:8080"));
  EXPECT_FALSE(is_local_host("localhost.evil.example"));
  EXPECT_FALSE(is_local_host("1.evil"));

  ScriptedServer server;
  HttpClient client(server.port());
  client.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(client.read_answer().status, 403);
  ApiOptions keyed;
  keyed.server.api_keys = {"k"};
  ScriptedServer with_key(keyed);
  HttpClient other(with_key.port());
  other.send("GET /v1/models HTTP/1.1\r\nHost: calla.example\r\nAuthorization: Bearer k\r\n\r\n");
  EXPECT_EQ(other.read_answer().status, 200);
}

TEST(Server, DescribesItsModel) {
  ScriptedServer server;
  const Json list = ask(server.port(), "GET", "/v1/models").json();
  EXPECT_EQ(list.at("object"), "list");
  ASSERT_EQ(list.at("data").size(), 1U);
  const Json& model = list.at("data").at(0);
  EXPECT_EQ(model.at("id"), "demo");
  EXPECT_EQ(model.at("object"), "model");
  EXPECT_EQ(model.at("created"), 1700000000);
  for (const char* name : {"context_length", "max_model_len", "context_window"})
    EXPECT_EQ(model.at(name), 2048) << name;
  EXPECT_EQ(model.at("meta").at("n_ctx"), 2048);
  EXPECT_EQ(ask(server.port(), "GET", "/v1/models/demo").json(), model);
  EXPECT_EQ(ask(server.port(), "GET", "/v1/models/gpt-9").status, 404);
}

TEST(Server, ServesThePageWithAPolicyThatLetsNothingElseIn) {
  ScriptedServer server;
  const HttpAnswer page = ask(server.port(), "GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.header("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.body, read_file(source("src/server/page/index.html")));
  const std::string policy = page.header("content-security-policy");
  EXPECT_NE(policy.find("default-src 'none'"), std::string::npos) << policy;
  EXPECT_NE(policy.find("connect-src 'self'"), std::string::npos) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
}

TEST(Server, WritesOneLineForARequestAndNoneOfItsText) {
  ScriptedServer server;
  server.say("hush-answer");
  server.chat(chat_body("hush-question"));
  const std::string line = server.api().log_line_with("path=\"/v1/chat/completions\"");
  for (const char* part :
       {"id=req_", "peer=127.0.0.1", "method=POST", "status=200", "stream=false", "prompt=", "cached=0",
        "out=", "queued=", "prefill=", "decode=", "finish=stop", "first_token="}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  }
  server.chat(chat_body("hush-question", {{"temperature", 9}}));
  EXPECT_NE(server.api().log_line_with("status=400").find("error=\"temperature:"), std::string::npos);
  ask(server.port(), "GET", "/health");
  ask(server.port(), "GET", "/a\x1b[31m");
  for (const std::string& text : server.api().log()) {
    EXPECT_EQ(text.find("hush"), std::string::npos) << text;
    EXPECT_EQ(text.find("/health"), std::string::npos) << "what is asked for all the time is not logged";
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
  }
}

TEST(Server, LogsTextWhereItIsAskedTo) {
  ApiOptions options;
  options.server.log_text = true;
  ScriptedServer server(options);
  server.say("an answer");
  server.chat(chat_body("a question"));
  const std::string line = server.api().log_line_with("status=200");
  EXPECT_NE(line.find("a question"), std::string::npos) << line;
  EXPECT_NE(line.find("answer=\"an answer\""), std::string::npos) << line;
}

TEST(Server, GivesEachRequestAnId) {
  ScriptedServer server;
  const std::string first = ask(server.port(), "GET", "/health").header("x-request-id");
  const std::string second = ask(server.port(), "GET", "/nothing").header("x-request-id");
  EXPECT_TRUE(first.starts_with("req_"));
  EXPECT_NE(first, second);
}

TEST(Server, EndsWithinASecondAndTellsItsClients) {
  ApiOptions options;
  options.server.limits.unsent_bytes = 1000;
  ScriptedServer server(options);
  server.play({.tokens = tokens_of("on and on"), .ends = false});
  server.control().step_micros = 2000;
  HttpClient stream(server.port());
  HttpClient whole(server.port());
  HttpClient waiting(server.port());
  HttpClient idle(server.port());
  HttpClient half(server.port());
  half.send("POST /v1/chat/completions HTTP/1.1\r\nContent-");
  stream.send_request("POST", "/v1/chat/completions", chat_body("?", {{"stream", true}}).dump());
  ASSERT_TRUE(eventually([&] { return server.api().engine().stats().busy == 1; }));
  whole.send_request("POST", "/v1/chat/completions", chat_body("?").dump());
  ASSERT_TRUE(eventually([&] { return server.api().engine().stats().busy == 2; }));
  waiting.send_request("POST", "/v1/chat/completions", chat_body("?").dump());
  ASSERT_TRUE(eventually([&] { return server.api().engine().stats().waiting == 1; }));

  const auto begin = std::chrono::steady_clock::now();
  server.api().server().stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(2000))
      << "a second, and one for a busy machine";

  const Events events = read_events(stream.read_answer().body);
  ASSERT_GE(events.data.size(), 2U);
  EXPECT_EQ(events.data.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events.data[events.data.size() - 2]).at("error").at("code"), "shutting_down");
  for (HttpClient* client : {&whole, &waiting}) {
    const HttpAnswer answer = client->read_answer();
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.json().at("error").at("code"), "shutting_down");
  }
  EXPECT_TRUE(idle.closed_within(milliseconds(1000)));
  EXPECT_TRUE(half.closed_within(milliseconds(1000)));
}

TEST(Auth, ComparesWholeKeys) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abd", "abc"));
  EXPECT_FALSE(equal_in_constant_time("ab", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abcabc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("", "abc"));
}

TEST(Cors, AllowsAllOriginsOnlyIfToldSo) {
  HttpRequest request{.method = "GET", .headers = {{"origin", "https://a.example"}}};
  EXPECT_TRUE(cors_headers(request, {}).empty());
  EXPECT_EQ(cors_headers(request, {"*"}).at(0).second, "*");
  EXPECT_EQ(cors_headers(request, {"https://b.example"}), (Headers{{"Vary", "Origin"}}));
  request.headers.clear();
  EXPECT_TRUE(cors_headers(request, {"*"}).empty()) << "no page asks";
}

}  // namespace
}  // namespace calla::server
