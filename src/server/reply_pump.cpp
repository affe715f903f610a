#include "server/reply_pump.h"

#include <algorithm>

namespace calla::server {
namespace {

/// What an event adds to the answer; null where it adds none.
const std::string* text_of(const ChatEvent& event) {
  if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) return &reasoning->text;
  if (const auto* content = std::get_if<ContentDelta>(&event)) return &content->text;
  if (const auto* call = std::get_if<ChatToolCall>(&event)) return &call->name;
  if (const auto* arguments = std::get_if<ToolCallArguments>(&event)) return &arguments->json;
  return nullptr;
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
      if (const std::string* text = text_of(*event)) {
        if (!call.record.first_token)
          call.record.first_token = RequestRecord::Clock::now() - call.record.began;
        if (call.keep_text) call.record.reply->text += *text;
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
