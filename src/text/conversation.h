// A conversation as the prompt format and the reply parser see it, free of any API's dialect.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace calla {

enum class Role { system, developer, user, assistant, tool };

/// A call of a tool by the assistant.
struct ToolCall {
  std::string id;    // chosen by whoever answers; empty where the sender gave none
  std::string name;
  Json arguments = Json::object();  // always an object, keys in the order of the text
};

struct Message {
  Role role = Role::user;
  std::string content;                   // UTF-8; parts are joined, null is empty
  std::optional<std::string> reasoning;  // of an assistant message, when the sender keeps it apart
  std::vector<ToolCall> tool_calls;      // of an assistant message
  std::string tool_call_id;              // of a tool message
};

struct Conversation {
  std::vector<Message> messages;
  std::vector<Json> tools;  // each as it was sent: {"type": "function", "function": {"name", "description", "parameters"}}
};

/// The switches of the chat format, under the names of the model's own template.
struct PromptOptions {
  bool add_generation_prompt = true;     // open the assistant's turn at the end
  bool enable_thinking = true;           // open it inside the reasoning, or with an empty reasoning block
  bool preserve_thinking = false;        // keep the reasoning of earlier turns
  bool continue_final_message = false;   // leave the final assistant message open instead of opening a new turn
};

}  // namespace calla
