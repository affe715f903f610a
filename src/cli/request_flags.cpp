#include "cli/commands.h"

namespace calla::cli {

void RequestFlags::apply(ChatRequest& request) const {
  request.sampling = sampling;
  if (greedy) request.sampling.temperature = 0.0F;
  if (no_think) request.options.enable_thinking = false;
  request.thinking_budget = thinking_budget;
  request.max_tokens = max_tokens;
  request.stop = stop;
}

}  // namespace calla::cli
