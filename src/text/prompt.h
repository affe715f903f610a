// The Qwen3.6 chat format, written natively: what the model's own Jinja template renders, byte for byte, and a lenient
// reading of the conversations that clients really send.
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

/// A rendered conversation. Text inside `literal` came from messages: control tokens typed there stay ordinary text.
struct Prompt {
  std::string text;
  std::vector<TextRange> literal;    // ascending, disjoint, not empty
  bool starts_in_reasoning = false;  // the reply begins inside an open <think> block
};

/// Renders a conversation. Throws RequestError, which names the message, for what the format cannot express.
Prompt write_prompt(const Conversation& conversation, const PromptOptions& options);

/// Reads {"messages": [...], "tools": [...]} as the OpenAI API spells it: content as a string, null or text parts;
/// tool-call arguments as an object or as JSON text; `reasoning` as another name of `reasoning_content`.
/// Throws RequestError that names the field.
Conversation conversation_from_json(const Json& request);

/// Reads the object chat_template_kwargs; unknown keys are ignored, null counts as absent.
PromptOptions prompt_options_from_json(const Json& kwargs);

}  // namespace calla
