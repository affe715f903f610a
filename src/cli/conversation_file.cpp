#include "cli/conversation_file.h"

#include <fstream>

#include "base/error.h"
#include "base/json.h"

namespace calla::cli {
namespace {

std::string_view name(Role role) {
  switch (role) {
    case Role::system:
      return "system";
    case Role::developer:
      return "developer";
    case Role::user:
      return "user";
    case Role::assistant:
      return "assistant";
    case Role::tool:
      return "tool";
  }
  return "user";
}

Json message_json(const Message& message) {
  Json json{{"role", name(message.role)}, {"content", message.content}};
  if (message.reasoning) json["reasoning_content"] = *message.reasoning;
  for (const ToolCall& call : message.tool_calls) json["tool_calls"].push_back(tool_call_json(call));
  if (!message.tool_call_id.empty()) json["tool_call_id"] = message.tool_call_id;
  return json;
}

/// Runs a reader of fields and puts the file's name before the field's in what it throws.
template <class Read>
auto within(std::string_view where, Read read) {
  try {
    return read();
  } catch (const RequestError& fault) {
    throw Error(where, fault.what());
  }
}

}  // namespace

ConversationFile read_conversation_file(const std::filesystem::path& path) {
  return conversation_file_from_json(read_json_file(path), path.string());
}

ConversationFile conversation_file_from_json(const Json& json, std::string_view where) {
  return within(where, [&] {
    ConversationFile file;
    file.conversation = conversation_from_json(json);
    const auto kwargs = json.find("chat_template_kwargs");
    if (kwargs != json.end() && !kwargs->is_null()) file.options = prompt_options_from_json(*kwargs);
    return file;
  });
}

void write_conversation_file(const std::filesystem::path& path, const Conversation& conversation,
                             const PromptOptions& options) {
  Json json{{"messages", Json::array()}};
  for (const Message& message : conversation.messages) json["messages"].push_back(message_json(message));
  if (!conversation.tools.empty()) json["tools"] = conversation.tools;
  json["chat_template_kwargs"] = {{"enable_thinking", options.enable_thinking}};
  // Written beside the target and renamed, so that a full disk does not cost the conversation that was there.
  std::filesystem::path partial = path;
  partial += ".part";
  std::ofstream out(partial, std::ios::binary);
  out << json.dump(2) << '\n';
  out.close();
  if (!out)
    throw Error(path.string(), "cannot be written", "check that the folder exists and the disk has room");
  std::filesystem::rename(partial, path);
}

std::vector<Json> read_tools_file(const std::filesystem::path& path) {
  Json json = read_json_file(path);
  // Only the tools of the request are read: the conversation's reader checks them.
  Json request{{"messages", Json::array()},
               {"tools", json.is_object() && json.contains("tools") ? json["tools"] : json}};
  return within(path.string(), [&] { return conversation_from_json(request).tools; });
}

Json tool_call_json(const ToolCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments.dump()}}}};
}

}  // namespace calla::cli
