#include "server/reply_pump.h"

#include <algorithm>

namespace calla::server {
namespace {

bool is_text(const ChatEvent& event) {
  return std::holds_alternative<ReasoningDelta>(event) || std::holds_alternative<ContentDelta>(event) ||
         std::holds_alternative<ChatToolCall>(event) || std::holds_alternative<ToolCallArguments>(event);
}

}  // namespace

Abandoned pump(Call& call, std::vector<ChatStream>& replies, int choices_per_prompt,
               const ReplyListener& listener) {
  constexpr Seconds alone{0.05};
  constexpr Seconds among_others{0.005};
  const Seconds patience = replies.size() == 1 ? alone : among_others;
  std::vector<bool> finished(replies.size());
  auto open = replies.size();
  call.record.reply.emplace();
  while (open > 0) {
    bool waited = false;
    for (std::size_t i = 0; i < replies.size(); ++i) {
      if (call.exchange.gone()) {
        call.record.status = 499;
        return Abandoned::client_gone;
      }
      if (call.stopping) return Abandoned::stopping;
      if (finished[i]) continue;
      const std::optional<ChatEvent> event = replies[i].next(waited ? Seconds(0) : patience);
      if (!event) {
        waited = true;
        continue;
      }
      if (is_text(*event) && !call.record.first_token) {
        call.record.first_token = RequestRecord::Clock::now() - call.record.began;
      }
      if (const auto* end = std::get_if<ChatFinished>(&*event)) {
        finished[i] = true;
        --open;
        if (end->end == ChatEnd::cancelled) return Abandoned::stopping;  // only the engine's end does that
        call.record.reply->add(*end, i % static_cast<std::size_t>(choices_per_prompt) == 0);
      }
      listener.event(i, *event);
    }
    if (waited) listener.pause();
  }
  return Abandoned::no;
}

}  // namespace calla::server
