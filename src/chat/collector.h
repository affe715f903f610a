// A whole turn put together from its events: what an answer that is not streamed consists of.
#pragma once
#include <string>
#include <vector>

#include "chat/chat.h"

namespace calla {

class ChatCollector {
 public:
  void add(const ChatEvent& event);

  /// The reply so far, tool calls with their ids.
  Reply reply() const;
  /// The reply as the assistant's message of the conversation.
  Message message() const;

 private:
  ReplyCollector collector_;
  std::vector<std::string> call_ids_;  // by index of the call
};

}  // namespace calla
