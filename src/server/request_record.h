// What is known of a request when it has been answered: a line of the log, and figures.
#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "chat/chat.h"

namespace calla::server {

/// Of a generation. With several choices the figures are sums, the times those of the longest.
struct ReplyRecord {
  ChatUsage usage;
  Seconds queued{};
  Seconds prefill{};
  Seconds decode{};
  std::string finish;      // "stop"; of several choices that which ended first
  std::string cache_note;  // of the same: why no more of the prompt was cached
  std::string text;        // of all choices; see Call::keep_text
  int choices = 0;
  bool streamed = false;

  /// Of several choices of a prompt one counts it.
  void add(const ChatFinished& finished, bool counts_prompt);
};

/// Holds text of messages and answers only where the server was told to log it.
struct RequestRecord {
  using Clock = std::chrono::steady_clock;

  std::string id;
  std::string peer;
  std::string method;
  std::string path;             // as asked for
  std::string route = "other";  // the same where it is one that there is
  Clock::time_point began = Clock::now();
  int status = 0;     // 499: the client went away
  std::string fault;  // what the client was told; empty for success
  std::string body;   // of the request; see Call::keep_text

  std::optional<ReplyRecord> reply;
  std::optional<Seconds> first_token;  // from `began`
};

/// One line of key=value pairs.
std::string log_line(const RequestRecord& record);

/// A request's id: "req_" and 16 random letters and digits.
std::string fresh_request_id();

}  // namespace calla::server
