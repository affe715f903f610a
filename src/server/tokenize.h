// POST /tokenize and /detokenize.
#pragma once
#include "server/call.h"

namespace calla::server {

/// {"content"} or {"messages", "tools", ...} to {"tokens", "count", "max_model_len"}.
void tokenize(Call& call);
/// {"tokens"} to {"content"}.
void detokenize(Call& call);

}  // namespace calla::server
