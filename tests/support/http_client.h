// A client on real sockets that can also do what no client should.
#pragma once
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace calla::test {

struct HttpAnswer {
  int status = 0;                              // 0: the connection ended before an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined

  Json json() const { return parse_json(body, "the answer"); }
  std::string header(const std::string& name) const;
};

/// One connection. All waiting ends after a minute, with an exception.
class HttpClient {
 public:
  explicit HttpClient(int port);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  HttpClient(HttpClient&&) = delete;
  HttpClient& operator=(HttpClient&&) = delete;

  using Headers = std::vector<std::pair<std::string, std::string>>;

  /// Sends bytes as they are; false when the other side takes no more.
  bool send(std::string_view bytes) const;
  void send_request(std::string_view method, std::string_view path, std::string_view body = {},
                    const Headers& headers = {{"Content-Type", "application/json"}});
  /// Reads one answer; with `head_only` all but its body.
  HttpAnswer read_answer(bool head_only = false);
  HttpAnswer request(std::string_view method, std::string_view path, std::string_view body = {},
                     const Headers& headers = {{"Content-Type", "application/json"}}) {
    send_request(method, path, body, headers);
    return read_answer();
  }
  /// Of a chunked answer whose head was read: the next line, without its end; nothing at the end of the
  /// answer.
  std::optional<std::string> read_line();
  /// Whether the other side closes within the time.
  bool closed_within(std::chrono::milliseconds time);
  /// Closes so that the other side sees a reset connection.
  void abort();
  void close();

 private:
  bool fill();  // reads some bytes; false at the end
  std::string take_until(std::string_view mark);
  std::string take(std::size_t bytes);

  int socket_ = -1;
  std::string buffer_;
  std::string text_;  // of chunks, not read as lines
  bool chunks_ended_ = false;
};

/// One request on a connection of its own.
HttpAnswer ask(int port, std::string_view method, std::string_view path, std::string_view body = {},
               const HttpClient::Headers& headers = {{"Content-Type", "application/json"}});

/// The data of all events of a stream, "[DONE]" included, and how many comments there were.
struct Events {
  std::vector<std::string> data;
  int comments = 0;
};
Events read_events(const std::string& stream);

}  // namespace calla::test
