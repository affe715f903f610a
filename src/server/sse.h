// Server-sent events.
#pragma once
#include <chrono>

#include "base/json.h"
#include "engine/engine.h"
#include "server/exchange.h"

namespace calla::server {

/// A stream of events on an exchange. Writes to a client that has gone go nowhere.
class EventSender {
 public:
  /// Begins the answer. After `keep_alive` without an event, tick() sends a comment.
  EventSender(Exchange& exchange, Seconds keep_alive);

  void send(const Json& data);
  void tick();
  /// "[DONE]", and the end of the answer.
  void finish();

 private:
  void write(std::string bytes);

  Exchange* exchange_;
  Seconds keep_alive_;
  std::chrono::steady_clock::time_point last_write_;
};

}  // namespace calla::server
