// HTTP/1.1 on a port: connections, limits and time-outs. One thread serves all sockets, so that a client that
// sends or reads slowly costs memory and nothing else.
#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "server/exchange.h"

namespace calla::server {

struct HttpLimits {
  using Time = std::chrono::milliseconds;

  int connections = 512;  // beyond them the longest idle one is closed, else the new one refused
  std::size_t header_bytes = std::size_t{64} << 10U;
  std::size_t body_bytes = std::size_t{64} << 20U;
  Time header_time{
      10'000};  // from a request's first byte (the connection, for the first) to the end of its headers
  Time body_time{60'000};                            // from there to its last byte
  Time idle_time{75'000};                            // between two requests
  Time write_time{30'000};                           // without a byte of the answer taken
  std::size_t unsent_bytes = std::size_t{1} << 20U;  // of a stream; then write() waits
};

/// A request that was refused before it was whole.
struct RefusedRequest {
  std::string peer;
  int status = 0;
  std::string reason;
};

class HttpServer {
 public:
  /// Both are called on the thread of the sockets and must not wait: whatever takes time goes to another
  /// thread.
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;
  using RefusalLog = std::function<void(const RefusedRequest&)>;

  HttpServer(const HttpLimits& limits, Handler handler, RefusalLog refused);
  /// Ends all connections. No exchange may outlive it.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  HttpServer(HttpServer&&) = delete;
  HttpServer& operator=(HttpServer&&) = delete;

  /// Takes the port and begins to serve; 0: any that is free. Throws Error when it cannot be had.
  void start(const std::string& host, int port);
  int port() const;
  /// Whether only this machine can connect.
  bool is_loopback() const;

  /// Accepts no more connections, and closes those that wait for a request.
  void stop_accepting();
  /// Closes all connections, whatever they are doing, and returns when no handler runs any more. Exchanges
  /// may live on; for them the client has gone.
  void stop();
  /// Connections that are open.
  int connections() const;

 private:
  class Listener;
  std::unique_ptr<Listener> listener_;
};

}  // namespace calla::server
