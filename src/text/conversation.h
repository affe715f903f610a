// A conversation as the prompt format and the reply parser see it, free of any API's dialect, and its lenient
// reading from what clients really send.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace calla {

enum class Role { system, developer, user, assistant, tool };

/// A call of a tool by the assistant.
struct ToolCall {
  std::string id;  // chosen by whoever answers; empty where the sender gave none
  std::string name;
  Json arguments = Json::object();  // always an object, keys in the order of the text
};

struct Message {
  Role role = Role::user;
  std::string content = {};                   // UTF-8; parts are joined, null is empty
  std::optional<std::string> reasoning = {};  // of an assistant message, when the sender keeps it apart
  std::vector<ToolCall> tool_calls = {};      // of an assistant message
  std::string tool_call_id = {};              // of a tool message
};

struct Conversation {
  std::vector<Message> messages;
  std::vector<Json> tools;  // as sent: {"type": "function", "function": {"name", "parameters", ...}}
};

/// The switches of the chat format, under the names of the model's own template.
struct PromptOptions {
  bool add_generation_prompt = true;    // open the assistant's turn at the end
  bool enable_thinking = true;          // open it inside the reasoning, or with an empty reasoning block
  bool preserve_thinking = false;       // keep the reasoning of earlier turns
  bool continue_final_message = false;  // leave the final assistant message open, without a new turn
};

/// Reads {"messages": [...], "tools": [...]} as the OpenAI API spells it: content as a string, null or text
/// parts; a tool's result as any JSON value; tool-call arguments as an object or as JSON text, mended where
/// it was cut off; `reasoning` as another name of `reasoning_content`; `function` as another name of the role
/// `tool`. Unknown fields are ignored. Throws RequestError that names the field.
Conversation conversation_from_json(const Json& request);

/// Reads the object chat_template_kwargs; unknown keys are ignored, null counts as absent. Throws
/// RequestError that names the key.
PromptOptions prompt_options_from_json(const Json& kwargs, PromptOptions options = {});

}  // namespace calla
