// The sockets by themselves: what is no request, who is slow, who goes away.
#include "server/http_server.h"

#include <atomic>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api_server.h"
#include "base/error.h"
#include "support/http_client.h"

namespace calla::server {
namespace {

using namespace test;
using std::chrono::milliseconds;

/// Echoes bodies; "/stream" sends `pieces` pieces of `piece` on a thread of its own.
class EchoServer {
 public:
  explicit EchoServer(HttpLimits limits = {})
      : server_(
            limits, [this](std::shared_ptr<Exchange> exchange) { handle(std::move(exchange)); },
            [this](const RefusedRequest& request) {
              const std::lock_guard lock(mutex_);
              refused_.push_back(request);
            }) {
    server_.start("127.0.0.1", 0);
  }
  ~EchoServer() {
    server_.stop();
    for (std::thread& thread : threads_) thread.join();
  }
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;

  int port() const { return server_.port(); }
  HttpServer& server() { return server_; }
  std::vector<RefusedRequest> refused() const {
    const std::lock_guard lock(mutex_);
    return refused_;
  }

  std::string piece = "piece";
  int pieces = 3;
  std::atomic<int> written{0};
  std::atomic<bool> told_gone{false};
  std::atomic<bool> held{false};  // answers wait while it is set

 private:
  void handle(std::shared_ptr<Exchange> exchange) {
    exchange->add_header("X-Path", exchange->request().path + "|" + exchange->request().query);
    if (exchange->request().path == "/drop") return;
    if (exchange->request().path != "/stream" && !held) {
      return exchange->answer(
          {.headers = {{"Content-Type", "text/plain"}}, .body = exchange->request().body});
    }
    threads_.emplace_back([this, exchange = std::move(exchange)] {
      while (held && !exchange->gone()) std::this_thread::sleep_for(milliseconds(2));
      if (exchange->request().path != "/stream") {
        told_gone = exchange->gone();
        return exchange->answer({.body = "late"});
      }
      exchange->begin_stream(200, {});
      for (int i = 0; i < pieces; ++i) {
        if (!exchange->write(piece)) {
          told_gone = true;
          return;
        }
        ++written;
      }
      exchange->end_stream();
    });
  }

  mutable std::mutex mutex_;
  std::vector<RefusedRequest> refused_;
  std::vector<std::thread> threads_;
  HttpServer server_;
};

TEST(HttpServer, AnswersOneRequestAfterTheOtherOnAConnection) {
  EchoServer server;
  HttpClient client(server.port());
  for (const char* body : {"one", "", "three"}) {
    const HttpAnswer answer = client.request("POST", "/a?b=c", body);
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, body);
    EXPECT_EQ(answer.header("x-path"), "/a|b=c");
    EXPECT_EQ(answer.header("connection"), "keep-alive");
  }
  EXPECT_EQ(client.request("GET", "/a", "", {{"Connection", "close"}}).header("connection"), "close");
  EXPECT_TRUE(client.closed_within(milliseconds(5000)));
}

TEST(HttpServer, TakesRequestsSentAhead) {
  EchoServer server;
  HttpClient client(server.port());
  client.send(
      "POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\noneGET /2 HTTP/1.1\r\nHost: x\r\n\r\n"
      "POST /3 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "one");
  EXPECT_EQ(client.read_answer().header("x-path"), "/2|");
  EXPECT_EQ(client.read_answer().body, "abcde");
}

TEST(HttpServer, AnswersHeadWithoutABody) {
  EchoServer server;
  HttpClient client(server.port());
  client.send("HEAD / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_EQ(client.read_answer(true).header("content-length"), "5");
  EXPECT_EQ(client.request("GET", "/next").header("x-path"), "/next|") << "no byte of a body was in between";
}

TEST(HttpServer, AnswersAnOldClientAndCloses) {
  EchoServer server;
  HttpClient client(server.port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const HttpAnswer answer = client.read_answer();
  EXPECT_EQ(answer.header("transfer-encoding"), "");
  EXPECT_EQ(answer.body, "piecepiecepiece");
}

TEST(HttpServer, SaysContinueToWhoAsks) {
  EchoServer server;
  HttpClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(50));
    client.send("ok");
  });
  EXPECT_EQ(client.read_answer().body, "ok");
  later.join();
}

TEST(HttpServer, RefusesWhatIsNoRequest) {
  EchoServer server;
  for (const std::string bytes :
       {"hello\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    HttpClient client(server.port());
    client.send(bytes);
    const HttpAnswer answer = client.read_answer();
    EXPECT_EQ(answer.status, 400) << bytes;
    EXPECT_EQ(answer.json().at("error").at("type"), "invalid_request_error");
    EXPECT_TRUE(client.closed_within(milliseconds(5000)));
  }
  EXPECT_EQ(server.refused().size(), 7U) << "a line of the log each";
}

TEST(HttpServer, RefusesWhatIsTooLargeBeforeReadingIt) {
  HttpLimits limits;
  limits.body_bytes = 1000;
  limits.header_bytes = 2000;
  EchoServer server(limits);
  EXPECT_EQ(ask(server.port(), "POST", "/", std::string(1000, 'x')).status, 200);
  {
    HttpClient client(server.port());
    client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n");
    const HttpAnswer answer = client.read_answer();
    EXPECT_EQ(answer.status, 413);
    EXPECT_NE(answer.json().at("error").at("message").get<std::string>().find("1000 bytes"),
              std::string::npos);
  }
  {
    HttpClient client(server.port());
    client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 20; ++i) client.send("64\r\n" + std::string(100, 'x') + "\r\n");
    EXPECT_EQ(client.read_answer().status, 413) << "a length that was not told";
  }
  {
    HttpClient client(server.port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + std::string(3000, 'y') + "\r\n\r\n");
    EXPECT_EQ(client.read_answer().status, 431);
  }
  {
    // Who sends all of it nevertheless can read the answer.
    HttpClient client(server.port());
    client.send_request("POST", "/", std::string(1'000'000, 'x'));
    EXPECT_EQ(client.read_answer().status, 413);
  }
}

TEST(HttpServer, DoesNotWaitForSlowSenders) {
  HttpLimits limits;
  limits.header_time = milliseconds(150);
  limits.body_time = milliseconds(150);
  limits.idle_time = milliseconds(300);
  EchoServer server(limits);
  HttpClient silent(server.port());
  EXPECT_TRUE(silent.closed_within(milliseconds(5000))) << "says nothing";

  const auto trickle = [&](HttpClient& client) {
    for (int i = 0; i < 500; ++i) {
      if (!client.send("x")) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  };
  HttpClient slow_head(server.port());
  slow_head.send("GET / HTTP/1.1\r\nX-Slow: ");
  EXPECT_TRUE(trickle(slow_head)) << "a byte now and then does not help";
  HttpClient slow_body(server.port());
  slow_body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n");
  EXPECT_TRUE(trickle(slow_body));
  HttpClient idle(server.port());
  EXPECT_EQ(idle.request("GET", "/").status, 200);
  EXPECT_TRUE(idle.closed_within(milliseconds(5000))) << "asks nothing more";
  EXPECT_TRUE(eventually([&] { return server.server().connections() == 0; }));
}

TEST(HttpServer, DoesNotWaitForSlowReaders) {
  HttpLimits limits;
  limits.write_time = milliseconds(200);
  limits.unsent_bytes = 100'000;
  EchoServer server(limits);
  server.piece = std::string(50'000, 'p');
  server.pieces = 10'000;
  HttpClient client(server.port());
  client.send_request("GET", "/stream");
  EXPECT_TRUE(eventually([&] { return server.told_gone.load(); }));
  EXPECT_LT(server.written, 2'000) << "what is unsent is bounded";
  EXPECT_TRUE(eventually([&] { return server.server().connections() == 0; }));
}

TEST(HttpServer, NoticesThatAClientHasGone) {
  EchoServer server;
  for (const bool reset : {false, true}) {
    server.held = true;
    server.told_gone = false;
    HttpClient client(server.port());
    client.send_request("GET", "/wait");
    std::this_thread::sleep_for(milliseconds(30));
    reset ? client.abort() : client.close();
    EXPECT_TRUE(eventually([&] { return server.told_gone.load(); }));
  }
}

TEST(HttpServer, SurvivesConnectionsThatEndAtAnyPoint) {
  EchoServer server;
  const std::string request = "POST /stream HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello";
  for (std::size_t length = 0; length <= request.size(); length += 3) {
    for (const bool reset : {false, true}) {
      HttpClient client(server.port());
      client.send(std::string_view(request).substr(0, length));
      reset ? client.abort() : client.close();
    }
  }
  EXPECT_EQ(ask(server.port(), "POST", "/", "alive").body, "alive");
  EXPECT_TRUE(eventually([&] { return server.server().connections() == 0; }));
}

TEST(HttpServer, ClosesAnExchangeThatNobodyAnswers) {
  EchoServer server;
  HttpClient client(server.port());
  client.send_request("GET", "/drop");
  EXPECT_EQ(client.read_answer().status, 0);
}

TEST(HttpServer, BoundsItsConnections) {
  HttpLimits limits;
  limits.connections = 3;
  EchoServer server(limits);
  server.held = true;
  std::vector<std::unique_ptr<HttpClient>> busy;
  for (int i = 0; i < 2; ++i) {
    busy.push_back(std::make_unique<HttpClient>(server.port()));
    busy.back()->send_request("GET", "/wait");
  }
  HttpClient idle(server.port());
  ASSERT_TRUE(eventually([&] { return server.server().connections() == 3; }));
  std::this_thread::sleep_for(milliseconds(50));
  busy.push_back(std::make_unique<HttpClient>(server.port()));
  busy.back()->send_request("GET", "/wait");
  EXPECT_TRUE(idle.closed_within(milliseconds(5000))) << "who does nothing makes room";
  std::this_thread::sleep_for(milliseconds(50));
  HttpClient refused(server.port());
  const HttpAnswer answer = refused.read_answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.header("retry-after"), "1");
  EXPECT_EQ(answer.json().at("error").at("code"), "too_many_connections");
  server.held = false;
  EXPECT_EQ(busy[0]->read_answer().body, "late");
}

TEST(HttpServer, TellsWhyAPortCannotBeHad) {
  EchoServer server;
  HttpServer second(
      {}, [](auto) {}, [](const auto&) {});
  const std::string message = message_of([&] { second.start("127.0.0.1", server.port()); });
  EXPECT_NE(message.find(fmt::format("127.0.0.1:{}: cannot be listened on: ", server.port())),
            std::string::npos)
      << message;
  HttpServer third(
      {}, [](auto) {}, [](const auto&) {});
  EXPECT_NE(message_of([&] { third.start("no.such.host.invalid", 0); }).find("--host"), std::string::npos);
}

}  // namespace
}  // namespace calla::server
