// One request over HTTP and its answer. What is above knows nothing of sockets.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calla::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method = {};
  std::string path = {};   // as sent, without the query
  std::string query = {};  // behind the question mark
  Headers headers = {};    // names in lower case
  std::string body = {};
  std::string peer = {};  // the client's address

  /// A header by its name in lower case; empty where it was not sent.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  Headers headers = {};
  std::string body = {};
};

/// Answered once: by answer(), or by begin_stream(), write() and end_stream(). One thread at a time. Dropped
/// without an answer, or in the middle of a stream, it closes the connection.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;
  /// A header of the answer, whatever kind it is; before it begins.
  virtual void add_header(std::string name, std::string value) = 0;

  virtual void answer(HttpResponse response) = 0;

  virtual void begin_stream(int status, const Headers& headers) = 0;
  /// Waits while the client is slow to read; false when it has gone.
  virtual bool write(std::string bytes) = 0;
  virtual void end_stream() = 0;
  /// Whether an answer or a stream has begun.
  virtual bool begun() const = 0;

  /// Whether the client has closed the connection: nobody waits for the answer.
  virtual bool gone() const = 0;
};

}  // namespace calla::server
