// One connection: requests in, answers out, one after the other.
#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/exchange.h"
#include "server/http_server.h"

namespace calla::server {

class Connection;

/// What a connection needs of the one who listens. All on the thread of the sockets.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  virtual const HttpLimits& limits() const = 0;
  virtual bool closing() const = 0;
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  virtual void refused(const RefusedRequest& request) = 0;
  virtual void joined(Connection& connection) = 0;
  virtual void left(Connection& connection) = 0;
};

/// The answer that a connection beyond the limit gets.
std::string_view too_many_connections();

/// What the thread that writes an answer shares with the thread of the sockets.
class Outbox {
 public:
  /// Counts bytes that are going to be sent; waits first while `limit` or more are unsent. False when the
  /// client has gone.
  bool add(std::size_t bytes, std::size_t limit);
  void sent(std::size_t bytes);
  void close();
  bool closed() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t unsent_ = 0;
  bool closed_ = false;
};

/// Lives as long as an operation on its socket or an exchange is under way. All but the constructor of its
/// exchange runs on the thread of the sockets.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(ConnectionOwner& owner, boost::asio::ip::tcp::socket socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  Connection(Connection&&) = delete;
  Connection& operator=(Connection&&) = delete;

  void start();
  void close();
  bool idle() const { return idle_; }
  /// The answer is complete, and not all of it has left.
  bool sends_its_end() const { return last_; }
  Clock::time_point idle_since() const { return idle_since_; }

 private:
  class Answer;
  using ErrorCode = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void wait_for_request(HttpLimits::Time patience);
  void read_head();
  void read_body();
  void dispatch();
  void refuse(int status, const std::string& reason);
  void refuse_fault(ErrorCode fault);
  void watch_peer();
  void send(const std::string& bytes, bool last);
  void flush();
  void answered();
  void linger();
  void discard();

  ConnectionOwner& owner_;
  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::string peer_;
  bool idle_ = false;
  Clock::time_point idle_since_;
  Clock::time_point linger_until_;

  std::shared_ptr<Outbox> outbox_;  // of the answer under way
  std::string queued_;              // not given to the socket
  std::string writing_;             // given to it, from `written_` on
  std::size_t written_ = 0;
  bool last_ = false;  // the answer ends with what is queued
  bool keep_alive_ = false;
};

}  // namespace calla::server
