// Conversations and tools in JSON files.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat.h"
#include "text/conversation.h"

namespace calla::cli {

struct ConversationFile {
  Conversation conversation;
  PromptOptions options;
};

/// Reads {"messages": [...], "tools": [...], "chat_template_kwargs": {...}}. Throws Error that names the file
/// and the field.
ConversationFile read_conversation_file(const std::filesystem::path& path);
/// The same from JSON; `where` names its origin.
ConversationFile conversation_file_from_json(const Json& json, std::string_view where);

/// Writes the same form, whole or not at all. Throws Error when that fails.
void write_conversation_file(const std::filesystem::path& path, const Conversation& conversation,
                             const PromptOptions& options);

/// Reads an array of tools, or an object with a key "tools". Throws Error that names the file and the field.
std::vector<Json> read_tools_file(const std::filesystem::path& path);

/// The OpenAI API's form of a call: {"id", "type": "function", "function": {"name", "arguments"}}, arguments
/// as JSON text.
Json tool_call_json(const ToolCall& call);

}  // namespace calla::cli
