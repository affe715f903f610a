#include "server/connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>

#include "server/errors.h"

namespace calla::server {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using net::ip::tcp;

namespace {

constexpr std::size_t read_piece = std::size_t{64} << 10U;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::string head(int status, const Headers& headers, bool keep_alive) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\n", status, std::string_view(reason.data(), reason.size()));
  for (const auto& [name, value] : headers) text += fmt::format("{}: {}\r\n", name, value);
  text += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return text;
}

std::string whole(const HttpResponse& response, bool keep_alive, bool with_body) {
  Headers headers = response.headers;
  // 204 has neither a body nor its length.
  if (response.status != 204) headers.emplace_back("Content-Length", std::to_string(response.body.size()));
  std::string text = head(response.status, headers, keep_alive);
  if (with_body) text += response.body;
  return text;
}

HttpRequest plain_request(http::request<http::string_body>&& message, std::string peer) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const std::size_t mark = std::min(target.find('?'), target.size());
  request.path = target.substr(0, mark);
  if (mark < target.size()) request.query = target.substr(mark + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(
        lower(std::string_view(field.name_string().data(), field.name_string().size())),
        std::string(field.value()));
  }
  request.body = std::move(message.body());
  request.peer = std::move(peer);
  return request;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  const auto found =
      std::find_if(headers.begin(), headers.end(), [&](const auto& h) { return h.first == name; });
  return found == headers.end() ? std::string_view() : found->second;
}

std::string_view too_many_connections() {
  static const std::string response = [] {
    HttpResponse answer = error_response(503, {.message = "too many connections; try again soon",
                                               .type = "server_error",
                                               .code = "too_many_connections"});
    answer.headers.emplace_back("Retry-After", "1");
    return whole(answer, false, true);
  }();
  return response;
}

bool Outbox::add(std::size_t bytes, std::size_t limit) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || unsent_ < limit; });
  if (closed_) return false;
  unsent_ += bytes;
  return true;
}

void Outbox::sent(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    unsent_ -= bytes;
  }
  changed_.notify_one();
}

void Outbox::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
}

bool Outbox::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

/// The exchange of one request. It hands bytes to the thread of the sockets.
class Connection::Answer final : public Exchange {
 public:
  Answer(std::shared_ptr<Connection> connection, HttpRequest request, bool keep_alive, bool chunked)
      : connection_(std::move(connection)),
        outbox_(connection_->outbox_),
        executor_(connection_->stream_.get_executor()),
        unsent_limit_(connection_->owner_.limits().unsent_bytes),
        request_(std::move(request)),
        keep_alive_(keep_alive),
        chunked_(chunked) {}
  ~Answer() override {
    // The last reference to the connection must go on its own thread.
    net::post(executor_, [connection = std::move(connection_), ended = ended_] {
      if (!ended) connection->close();
    });
  }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  Answer(Answer&&) = delete;
  Answer& operator=(Answer&&) = delete;

  const HttpRequest& request() const override { return request_; }
  void add_header(std::string name, std::string value) override {
    headers_.emplace_back(std::move(name), std::move(value));
  }

  void answer(HttpResponse response) override {
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    post(whole(response, keep_alive_, request_.method != "HEAD"), true);
  }

  void begin_stream(int status, const Headers& headers) override {
    Headers all = headers;
    all.insert(all.end(), headers_.begin(), headers_.end());
    if (chunked_) all.emplace_back("Transfer-Encoding", "chunked");
    post(head(status, all, keep_alive_), false);
  }
  bool write(std::string bytes) override {
    if (bytes.empty()) return !gone();
    return post(chunked_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : std::move(bytes), false);
  }
  void end_stream() override { post(chunked_ ? "0\r\n\r\n" : "", true); }

  bool begun() const override { return begun_; }
  bool gone() const override { return outbox_->closed(); }

 private:
  bool post(std::string bytes, bool last) {
    begun_ = true;
    ended_ = last;
    if (!outbox_->add(bytes.size(), unsent_limit_)) return false;
    net::post(executor_,
              [connection = connection_, bytes = std::move(bytes), last] { connection->send(bytes, last); });
    return true;
  }

  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Outbox> outbox_;
  beast::tcp_stream::executor_type executor_;
  std::size_t unsent_limit_;
  HttpRequest request_;
  Headers headers_;
  bool keep_alive_;
  bool chunked_;
  bool begun_ = false;
  bool ended_ = false;
};

Connection::Connection(ConnectionOwner& owner, tcp::socket socket)
    : owner_(owner), stream_(std::move(socket)) {
  ErrorCode ignored;
  peer_ = stream_.socket().remote_endpoint(ignored).address().to_string();
  stream_.socket().set_option(tcp::no_delay(true), ignored);  // each piece of a stream at once
  owner_.joined(*this);
}

Connection::~Connection() { owner_.left(*this); }

void Connection::start() { wait_for_request(owner_.limits().header_time); }

void Connection::close() {
  idle_ = false;
  if (outbox_) outbox_->close();
  stream_.close();
}

void Connection::wait_for_request(HttpLimits::Time patience) {
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(owner_.limits().header_bytes));
  parser_->body_limit(owner_.limits().body_bytes);
  if (buffer_.size() > 0) return read_head();
  idle_ = true;
  idle_since_ = Clock::now();
  stream_.expires_after(patience);
  stream_.async_read_some(buffer_.prepare(read_piece),
                          [self = shared_from_this()](ErrorCode fault, std::size_t bytes) {
                            self->idle_ = false;
                            if (fault) return self->close();
                            self->buffer_.commit(bytes);
                            self->read_head();
                          });
}

void Connection::read_head() {
  stream_.expires_after(owner_.limits().header_time);
  http::async_read_header(
      stream_, buffer_, *parser_, [self = shared_from_this()](ErrorCode fault, std::size_t) {
        if (fault) return self->refuse_fault(fault);
        if (!beast::iequals(self->parser_->get()[http::field::expect], "100-continue"))
          return self->read_body();
        static constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
        net::async_write(self->stream_, net::buffer(go_on), [self](ErrorCode broken, std::size_t) {
          broken ? self->close() : self->read_body();
        });
      });
}

void Connection::read_body() {
  stream_.expires_after(owner_.limits().body_time);
  http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](ErrorCode fault, std::size_t) {
    fault ? self->refuse_fault(fault) : self->dispatch();
  });
}

void Connection::refuse_fault(ErrorCode fault) {
  const HttpLimits& limits = owner_.limits();
  if (fault == beast::error::timeout) {  // which has closed the socket
    owner_.refused({peer_, 408, "the request took too long to arrive"});
    return close();
  }
  if (fault == http::error::body_limit) {
    return refuse(413, fmt::format("the body is larger than {} bytes", limits.body_bytes));
  }
  if (fault == http::error::header_limit || fault == http::error::buffer_overflow) {
    return refuse(431, fmt::format("the headers are larger than {} bytes", limits.header_bytes));
  }
  const bool malformed = fault.category() == http::make_error_code(http::error::bad_method).category() &&
                         fault != http::error::end_of_stream && fault != http::error::partial_message;
  if (malformed) return refuse(400, "this is no HTTP request: " + fault.message());
  close();
}

void Connection::refuse(int status, const std::string& reason) {
  owner_.refused({peer_, status, reason});
  outbox_ = std::make_shared<Outbox>();
  keep_alive_ = false;
  const std::string code = status == 413   ? "request_too_large"
                           : status == 431 ? "headers_too_large"
                                           : "bad_request";
  std::string bytes =
      whole(error_response(status, {.message = reason, .type = "invalid_request_error", .code = code}), false,
            true);
  outbox_->add(bytes.size(), bytes.size());
  send(bytes, true);
}

void Connection::dispatch() {
  stream_.expires_never();
  auto message = parser_->release();
  keep_alive_ = message.keep_alive() && !owner_.closing();
  const bool chunked = message.version() >= 11;
  if (!chunked) keep_alive_ = false;
  outbox_ = std::make_shared<Outbox>();
  last_ = false;
  auto exchange = std::make_shared<Answer>(shared_from_this(), plain_request(std::move(message), peer_),
                                           keep_alive_, chunked);
  watch_peer();
  owner_.handle(std::move(exchange));
}

/// While an answer is made: has the client closed its end?
void Connection::watch_peer() {
  stream_.socket().async_wait(
      tcp::socket::wait_read, [self = shared_from_this(), outbox = outbox_](ErrorCode fault) {
        if (fault || self->outbox_ != outbox) return;
        char byte = 0;
        const ssize_t got = ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (got > 0) return;  // the next request, sent ahead
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return self->watch_peer();
        self->close();
      });
}

void Connection::send(const std::string& bytes, bool last) {
  queued_ += bytes;
  last_ = last_ || last;
  if (writing_.empty()) flush();
}

void Connection::flush() {
  if (written_ == writing_.size()) {
    writing_ = std::exchange(queued_, {});
    written_ = 0;
    if (writing_.empty()) {
      if (last_) answered();
      return;
    }
  }
  stream_.expires_after(owner_.limits().write_time);
  stream_.async_write_some(
      net::buffer(writing_.data() + written_, std::min(writing_.size() - written_, read_piece)),
      [self = shared_from_this()](ErrorCode fault, std::size_t bytes) {
        if (fault) return self->close();
        self->written_ += bytes;
        self->outbox_->sent(bytes);
        self->flush();
      });
}

void Connection::answered() {
  last_ = false;
  outbox_.reset();
  ErrorCode ignored;
  stream_.socket().cancel(ignored);  // nobody watches the peer any more
  if (owner_.closing()) {
    close();
  } else if (keep_alive_) {
    wait_for_request(owner_.limits().idle_time);
  } else {
    linger();
  }
}

/// Closes so that the client can read the answer even if it is still sending: what it sends is read and
/// thrown away for a while, because closing a socket with unread bytes would take the answer back.
void Connection::linger() {
  constexpr HttpLimits::Time lingering{2000};
  ErrorCode ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  linger_until_ = Clock::now() + lingering;
  stream_.expires_after(lingering);
  discard();
}

void Connection::discard() {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(read_piece),
                          [self = shared_from_this()](ErrorCode fault, std::size_t) {
                            if (fault || Clock::now() > self->linger_until_) return self->close();
                            self->discard();
                          });
}

}  // namespace calla::server
