// POST /v1/chat/completions: OpenAI's chat, streamed or whole.
#pragma once
#include "server/call.h"

namespace calla::server {

void chat_completions(Call& call);

}  // namespace calla::server
