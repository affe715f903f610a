// What the handler of an endpoint works with.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "chat/chat.h"
#include "server/exchange.h"
#include "server/request_record.h"

namespace calla::server {

/// The model that answers. `chat` outlives the server.
struct ServedModel {
  const Chat* chat = nullptr;
  std::string id;               // its name in answers
  std::int64_t created = 0;     // when it was loaded, in seconds since 1970
  PromptOptions defaults = {};  // whether to think, and keep what was thought, where a request does not say
};

/// One request that has passed the checks all share. A handler answers through the exchange, or throws before
/// it has begun to.
struct Call {
  Exchange& exchange;
  const ServedModel& model;
  RequestRecord& record;
  const std::atomic<bool>& stopping;  // the program is ending
  Seconds keep_alive{};               // silence after which a stream sends a comment
  bool keep_text = false;             // the record gets the answer's text

  const HttpRequest& request() const { return exchange.request(); }
  const Tokenizer& tokenizer() const { return model.chat->tokenizer(); }
};

}  // namespace calla::server
