// From running replies to the dialect that tells the client.
#pragma once
#include <functional>
#include <vector>

#include "chat/chat.h"
#include "server/call.h"

namespace calla::server {

/// Why a request's replies were given up before their end.
enum class Abandoned { no, client_gone, stopping };

struct ReplyListener {
  std::function<void(std::size_t choice, const ChatEvent& event)> event;
  std::function<void()> pause = [] {};  // nothing has come for a moment
};

/// Passes on the events of all replies until each has finished, in the order in which they come. Returns
/// early, within a twentieth of a second, when the client has gone or the program is ending; the caller drops
/// the replies then, which cancels them. Fills in the record, in which a prompt counts once for its
/// `choices_per_prompt` replies in a row.
Abandoned pump(Call& call, std::vector<ChatStream>& replies, int choices_per_prompt,
               const ReplyListener& listener);

}  // namespace calla::server
