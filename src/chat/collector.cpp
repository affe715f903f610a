#include "chat/collector.h"

#include <type_traits>
#include <utility>

namespace calla {

void ChatCollector::add(const ChatEvent& event) {
  std::visit(
      [&]<class Event>(const Event& e) {
        if constexpr (std::is_same_v<Event, ChatToolCall>) {
          call_ids_.push_back(e.id);
          collector_.add(ToolCallBegin{e.index, e.name});
        } else if constexpr (std::is_constructible_v<ReplyEvent, const Event&>) {
          collector_.add(e);
        }
      },
      event);
}

Reply ChatCollector::reply() const {
  Reply reply = collector_.reply();
  for (std::size_t i = 0; i < reply.tool_calls.size(); ++i) reply.tool_calls[i].id = call_ids_[i];
  return reply;
}

Message ChatCollector::message() const {
  Reply whole = reply();
  Message message;
  message.role = Role::assistant;
  message.content = std::move(whole.content).value_or("");
  message.reasoning = std::move(whole.reasoning);
  message.tool_calls = std::move(whole.tool_calls);
  return message;
}

}  // namespace calla
