// What answers of both completion endpoints have in common.
#pragma once
#include <string_view>

#include "base/json.h"
#include "chat/chat.h"
#include "server/call.h"
#include "server/errors.h"

namespace calla::server {

/// The members that every answer and every chunk of it begins with; "id" is `prefix` and what identifies the
/// request.
Json completion_head(const Call& call, std::string_view prefix, std::string_view object);

Json usage_json(const ChatUsage& usage);

/// {"token", "logprob", "bytes", "top_logprobs"}; "token" is the bytes as text, mended where they are half a
/// character.
Json logprob_json(const GeneratedToken& token, const Tokenizer& tokenizer);

/// The fault of a reply that the device did not finish.
HttpError generation_failed(const ChatFinished& finished);

}  // namespace calla::server
