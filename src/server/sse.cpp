#include "server/sse.h"

#include <utility>

#include "server/errors.h"

namespace calla::server {

EventSender::EventSender(Exchange& exchange, Seconds keep_alive)
    : exchange_(&exchange), keep_alive_(keep_alive), last_write_(std::chrono::steady_clock::now()) {
  // The last header keeps proxies from gathering events.
  exchange.begin_stream(200, {{"Content-Type", "text/event-stream; charset=utf-8"},
                              {"Cache-Control", "no-cache"},
                              {"X-Accel-Buffering", "no"}});
}

void EventSender::send(const Json& data) { write("data: " + dump(data) + "\n\n"); }

void EventSender::tick() {
  if (std::chrono::steady_clock::now() - last_write_ >= keep_alive_) write(": keep-alive\n\n");
}

void EventSender::finish() {
  write("data: [DONE]\n\n");
  exchange_->end_stream();
}

void EventSender::write(std::string bytes) {
  exchange_->write(std::move(bytes));
  last_write_ = std::chrono::steady_clock::now();
}

}  // namespace calla::server
