#include "server/http_server.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "server/connection.h"

namespace calla::server {

namespace net = boost::asio;
using net::ip::tcp;

class HttpServer::Listener final : public ConnectionOwner {
 public:
  Listener(const HttpLimits& limits, Handler handler, RefusalLog refused)
      : limits_(limits), handler_(std::move(handler)), refused_(std::move(refused)) {}
  ~Listener() override { stop(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  Listener(Listener&&) = delete;
  Listener& operator=(Listener&&) = delete;

  void start(const std::string& host, int port) {
    const std::string where = fmt::format("{}:{}", host, port);
    boost::system::error_code fault;
    tcp::resolver resolver(io_);
    const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, fault);
    if (fault) throw Error("--host", host + " is no address of this machine: " + fault.message());
    // Of "localhost" the address that every client tries.
    auto chosen = std::find_if(found.begin(), found.end(),
                               [](const auto& entry) { return entry.endpoint().address().is_v4(); });
    if (chosen == found.end()) chosen = found.begin();
    const tcp::endpoint endpoint = *chosen;
    acceptor_.open(endpoint.protocol(), fault);
    if (!fault) acceptor_.set_option(tcp::acceptor::reuse_address(true), fault);
    if (!fault) acceptor_.bind(endpoint, fault);
    if (!fault) acceptor_.listen(net::socket_base::max_listen_connections, fault);
    if (fault) {
      throw Error(where, "cannot be listened on: " + fault.message(),
                  "choose another --port, or end the program that has it");
    }
    endpoint_ = acceptor_.local_endpoint();
    accept();
    thread_ = std::thread([this] { io_.run(); });
  }

  const tcp::endpoint& endpoint() const { return endpoint_; }
  int count() const { return count_; }

  void stop_accepting() {
    net::post(io_, [this] {
      closing_ = true;
      boost::system::error_code ignored;
      acceptor_.close(ignored);
      while (close_longest_idle()) {
      }
    });
  }

  void stop() {
    // For an answer that is complete to leave.
    constexpr std::chrono::milliseconds patience{200};
    net::post(io_, [this, patience] {
      closing_ = true;
      for (Connection* connection : connections_) {
        if (!connection->sends_its_end()) connection->close();
      }
      stopping_ = true;
      if (connections_.empty()) return io_.stop();
      pause_.expires_after(patience);
      pause_.async_wait([this](boost::system::error_code) { io_.stop(); });
    });
    if (thread_.joinable()) thread_.join();
  }

  const HttpLimits& limits() const override { return limits_; }
  bool closing() const override { return closing_; }
  void handle(std::shared_ptr<Exchange> exchange) override { handler_(std::move(exchange)); }
  void refused(const RefusedRequest& request) override { refused_(request); }
  void joined(Connection& connection) override {
    connections_.insert(&connection);
    ++count_;
  }
  void left(Connection& connection) override {
    connections_.erase(&connection);
    --count_;
    if (stopping_ && connections_.empty()) io_.stop();
  }

 private:
  void accept() {
    acceptor_.async_accept([this](boost::system::error_code fault, tcp::socket socket) {
      if (closing_) return;
      if (fault) {
        // No file descriptors, most likely: some connection has to end first.
        pause_.expires_after(std::chrono::milliseconds(100));
        pause_.async_wait([this](boost::system::error_code cancelled) {
          if (!cancelled && !closing_) accept();
        });
        return;
      }
      if (count_ >= limits_.connections && !close_longest_idle()) {
        refuse(socket);
      } else {
        std::make_shared<Connection>(*this, std::move(socket))->start();
      }
      accept();
    });
  }

  bool close_longest_idle() {
    Connection* longest = nullptr;
    for (Connection* connection : connections_) {
      if (connection->idle() && (longest == nullptr || connection->idle_since() < longest->idle_since())) {
        longest = connection;
      }
    }
    if (longest == nullptr) return false;
    longest->close();
    return true;
  }

  void refuse(tcp::socket& socket) {
    boost::system::error_code ignored;
    const auto peer = socket.remote_endpoint(ignored).address().to_string();
    refused_({peer, 503, "too many connections"});
    socket.non_blocking(true, ignored);
    socket.write_some(net::buffer(too_many_connections()), ignored);
    socket.shutdown(tcp::socket::shutdown_both, ignored);
  }

  const HttpLimits limits_;
  Handler handler_;
  RefusalLog refused_;
  std::set<Connection*> connections_;  // alive ones; they outlive nothing above
  std::atomic<int> count_{0};
  bool closing_ = false;
  bool stopping_ = false;
  net::io_context io_{1};  // its end destroys the connections, which still know this object
  tcp::acceptor acceptor_{io_};
  net::steady_timer pause_{io_};
  tcp::endpoint endpoint_;
  std::thread thread_;
};

HttpServer::HttpServer(const HttpLimits& limits, Handler handler, RefusalLog refused)
    : listener_(std::make_unique<Listener>(limits, std::move(handler), std::move(refused))) {}
HttpServer::~HttpServer() = default;

void HttpServer::start(const std::string& host, int port) { listener_->start(host, port); }
int HttpServer::port() const { return listener_->endpoint().port(); }
bool HttpServer::is_loopback() const { return listener_->endpoint().address().is_loopback(); }
void HttpServer::stop_accepting() { listener_->stop_accepting(); }
void HttpServer::stop() { listener_->stop(); }
int HttpServer::connections() const { return listener_->count(); }

}  // namespace calla::server
