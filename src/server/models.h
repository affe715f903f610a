// GET /v1/models and /v1/models/ID.
#pragma once
#include "server/call.h"

namespace calla::server {

void list_models(Call& call);
/// 404 for another name than the model's.
void describe_model(Call& call);

}  // namespace calla::server
