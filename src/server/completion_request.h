// POST /v1/completions: the request.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "chat/chat.h"
#include "text/tokenizer.h"

namespace calla::server {

struct CompletionRequest {
  std::vector<RawRequest> prompts;  // of each prompt its first choice
  int choices = 1;                  // of each prompt
  bool echo = false;                // the answers begin with their prompts
  bool stream = false;
  bool include_usage = false;
};

/// Reads the body; control tokens in a prompt that is text are such. Throws RequestError that names the
/// field.
CompletionRequest completion_request(const Json& body, const Tokenizer& tokenizer);

}  // namespace calla::server
