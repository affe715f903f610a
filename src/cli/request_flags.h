// The flags with which `run` and `chat` shape a request.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "chat/chat.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace calla::cli {

struct RequestFlags {
  SamplingChoice sampling;
  bool greedy = false;
  bool no_think = false;
  std::optional<int> thinking_budget;
  std::optional<int> max_tokens;
  std::vector<std::string> stop;

  /// Sets everything but the conversation.
  void apply(ChatRequest& request) const;
};

/// Checks that a number is at least `least`, without a word of its own in the help.
CLI::Validator at_least(int least);

void add_request_flags(CLI::App& command, RequestFlags& flags);

}  // namespace calla::cli
