// POST /v1/completions: a text goes on, without turns or reasoning.
#pragma once
#include "server/call.h"

namespace calla::server {

void completions(Call& call);

}  // namespace calla::server
