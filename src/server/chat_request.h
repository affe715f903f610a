// POST /v1/chat/completions: the request.
#pragma once
#include <vector>

#include "base/json.h"
#include "chat/chat.h"
#include "server/generation_fields.h"

namespace calla::server {

struct ChatCompletionRequest {
  ChatRequest chat;  // of the first choice
  int choices = 1;
  bool stream = false;
  bool include_usage = false;
};

/// Reads the body. Unknown fields are ignored, null counts as absent; what it does not say of thinking is as
/// in `defaults`. Throws RequestError that names the field.
ChatCompletionRequest chat_completion_request(const Json& body, const Tokenizer& tokenizer,
                                              const PromptOptions& defaults);

/// One request a choice: they differ in their seeds.
std::vector<ChatRequest> requests_of_choices(const ChatCompletionRequest& request);

}  // namespace calla::server
