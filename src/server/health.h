// GET /health: whether the model is there.
#pragma once
#include <cstdint>

#include "server/call.h"

namespace calla::server {

/// How much of the model has been read, in bytes; 0 of 0 before that begins.
struct LoadState {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
};

/// 200 with the slots where there is a model, 503 with the progress while it loads and with the reason when
/// the device is lost.
HttpResponse health(const ServedModel* model, const LoadState& loading);

}  // namespace calla::server
