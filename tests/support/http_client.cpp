#include "support/http_client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <stdexcept>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace calla::test {
namespace {

constexpr int patience_ms = 60'000;  // a prompt takes its time on a busy machine

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

std::string HttpAnswer::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string() : found->second;
}

HttpClient::HttpClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
#ifdef SO_NOSIGPIPE
  const int on = 1;
  ::setsockopt(socket_, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on));
#endif
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error(fmt::format("cannot connect: errno {}", errno));
  }
}

HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void HttpClient::abort() {
  const linger hard{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  close();
}

bool HttpClient::send(std::string_view bytes) const {
  // A peer that has closed is an error, not a signal: said with each piece, or, on macOS, of the socket.
#ifdef SO_NOSIGPIPE
  constexpr int flags = 0;
#else
  constexpr int flags = MSG_NOSIGNAL;
#endif
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), flags);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void HttpClient::send_request(std::string_view method, std::string_view path, std::string_view body,
                              const Headers& headers) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\n", method, path);
  for (const auto& [name, value] : headers) text += fmt::format("{}: {}\r\n", name, value);
  text += fmt::format("Content-Length: {}\r\n\r\n{}", body.size(), body);
  send(text);
}

bool HttpClient::fill() {
  pollfd wait{.fd = socket_, .events = POLLIN, .revents = 0};
  if (::poll(&wait, 1, patience_ms) == 0) throw std::runtime_error("nothing came for a minute");
  std::array<char, 65536> bytes{};
  const ssize_t got = ::recv(socket_, bytes.data(), bytes.size(), 0);
  if (got <= 0) return false;
  buffer_.append(bytes.data(), static_cast<std::size_t>(got));
  return true;
}

std::string HttpClient::take_until(std::string_view mark) {
  std::size_t at = 0;
  while ((at = buffer_.find(mark)) == std::string::npos) {
    if (!fill()) return {};
  }
  std::string taken = buffer_.substr(0, at);
  buffer_.erase(0, at + mark.size());
  return taken;
}

std::string HttpClient::take(std::size_t bytes) {
  while (buffer_.size() < bytes && fill()) {
  }
  const std::size_t count = std::min(bytes, buffer_.size());
  std::string taken = buffer_.substr(0, count);
  buffer_.erase(0, count);
  return taken;
}

HttpAnswer HttpClient::read_answer(bool head_only) {
  HttpAnswer answer;
  chunks_ended_ = false;
  text_.clear();
  std::istringstream head(take_until("\r\n\r\n"));
  std::string version;
  if (!(head >> version >> answer.status)) return answer;
  std::string line;
  std::getline(head, line);
  while (std::getline(head, line)) {
    if (line.ends_with('\r')) line.pop_back();
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) answer.headers[lower(line.substr(0, colon))] = line.substr(colon + 2);
  }
  if (answer.status == 100) return read_answer(head_only);
  if (head_only) return answer;
  if (answer.header("transfer-encoding") == "chunked") {
    while (const auto text = read_line()) answer.body += *text + "\n";
    answer.body += text_;
  } else if (const std::string length = answer.header("content-length"); !length.empty()) {
    answer.body = take(std::stoul(length));
  } else if (answer.status != 204) {
    while (fill()) {
    }
    answer.body = std::exchange(buffer_, {});
  }
  return answer;
}

std::optional<std::string> HttpClient::read_line() {
  std::size_t at = 0;
  while ((at = text_.find('\n')) == std::string::npos) {
    if (chunks_ended_) return std::nullopt;
    const std::string size = take_until("\r\n");
    if (size.empty()) return std::nullopt;  // cut off
    const std::size_t bytes = std::stoul(size, nullptr, 16);
    text_ += take(bytes);
    take(2);
    chunks_ended_ = bytes == 0;
  }
  std::string line = text_.substr(0, at);
  text_.erase(0, at + 1);
  return line;
}

bool HttpClient::closed_within(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  std::array<char, 4096> bytes{};
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd wait{.fd = socket_, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&wait, 1, static_cast<int>(left.count())) == 0) return false;
    if (::recv(socket_, bytes.data(), bytes.size(), 0) <= 0) return true;
  }
}

HttpAnswer ask(int port, std::string_view method, std::string_view path, std::string_view body,
               const HttpClient::Headers& headers) {
  HttpClient client(port);
  return client.request(method, path, body, headers);
}

Events read_events(const std::string& stream) {
  Events events;
  std::istringstream lines(stream);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.starts_with("data: ")) events.data.push_back(line.substr(6));
    if (line.starts_with(":")) ++events.comments;
  }
  return events;
}

}  // namespace calla::test
