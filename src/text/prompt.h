// The Qwen3.6 chat format, written natively: what the model's own Jinja template renders, byte for byte.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "text/conversation.h"

namespace calla {

/// A range of bytes [begin, end) of a text.
struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const TextRange&) const = default;
};

/// A rendered conversation. Text inside `literal` came from messages: control tokens typed there stay
/// ordinary text.
struct Prompt {
  std::string text;
  std::vector<TextRange> literal;    // ascending, disjoint, not empty
  bool starts_in_reasoning = false;  // the reply begins inside an open <think> block
};

/// Renders a conversation, more leniently than the template: system messages at the start become one; a later
/// one becomes a turn of the user that is no query; without any query all turns belong to the one in
/// progress.
///
/// With continue_final_message the final message, the assistant's, stays open at its end; where it has
/// reasoning of its own but no content yet, it stays open inside the reasoning.
///
/// Throws RequestError, which names the message, for what the format cannot express: no messages, nothing but
/// system messages, a final message that cannot be continued.
Prompt write_prompt(const Conversation& conversation, const PromptOptions& options);

}  // namespace calla
