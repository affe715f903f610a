#include "text/conversation.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "text/python_text.h"
#include "text/replayed_arguments.h"
#include "text/utf8.h"

namespace calla {
namespace {
/// The member of an object, or null where it is absent or JSON's null.
const Json* member(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::string> string_member(const Json& object, const char* name) {
  const Json* value = member(object, name);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return value->get<std::string>();
}

/// A sender's word for an error message, which must stay one short line.
std::string quoted(const std::string& word) {
  constexpr std::size_t longest = 40;
  const std::string text = python_json(word);
  return text.size() <= longest ? text : mend_utf8(text.substr(0, longest)) + "...";
}

void check_nesting(const Json& value, const std::string& where) {
  if (json_nests_too_deeply(value)) throw RequestError(where, "is nested too deeply");
}

Role role_from_json(const Json& message, const std::string& where) {
  const Json* role = member(message, "role");
  if (role == nullptr) throw RequestError(where, "is missing");
  if (!role->is_string()) throw RequestError(where, "must be a string");
  constexpr std::array<std::pair<std::string_view, Role>, 6> names{{{"system", Role::system},
                                                                    {"developer", Role::developer},
                                                                    {"user", Role::user},
                                                                    {"assistant", Role::assistant},
                                                                    {"tool", Role::tool},
                                                                    {"function", Role::tool}}};
  const auto& name = role->get_ref<const std::string&>();
  const auto found =
      std::find_if(names.begin(), names.end(), [&](const auto& entry) { return entry.first == name; });
  if (found == names.end()) {
    throw RequestError(where, "unknown role " + quoted(name),
                       "use system, developer, user, assistant or tool");
  }
  return found->second;
}

[[noreturn]] void refuse_part(const std::string& where, const std::string& type) {
  throw RequestError(where, fmt::format("a part of type {} cannot be read", type),
                     "this build understands text only");
}

/// Media are named by the part's type or, as the template reads them, by a member.
void refuse_media(const Json& part, const std::string& where) {
  constexpr std::array<const char*, 9> kinds{"image", "image_url", "input_image",
                                             "video", "video_url", "input_video",
                                             "audio", "audio_url", "input_audio"};
  const std::optional<std::string> type = string_member(part, "type");
  for (const char* kind : kinds) {
    if (type == kind) refuse_part(where, python_json(kind));
  }
  for (const char* kind : kinds) {
    if (member(part, kind) != nullptr) refuse_part(where, python_json(kind));
  }
}

std::string text_of_part(const Json& part, const std::string& where) {
  if (part.is_string()) return part.get<std::string>();
  if (!part.is_object()) throw RequestError(where, "must be an object");
  refuse_media(part, where);
  bool is_text = false;
  for (const char* name : {"text", "refusal"}) {
    if (const Json* text = member(part, name)) {
      if (!text->is_string()) throw RequestError(where + "." + name, "must be a string");
      return text->get<std::string>();
    }
    is_text = is_text || part.contains(name);
  }
  if (is_text) return {};  // a text of null
  const Json* type = member(part, "type");
  if (type == nullptr) throw RequestError(where, "has neither a type nor a text");
  if (!type->is_string()) throw RequestError(where + ".type", "must be a string");
  const auto& name = type->get_ref<const std::string&>();
  if (name.ends_with("text")) throw RequestError(where + ".text", "is missing");
  refuse_part(where, quoted(name));
}

/// Results are often sent as the tool returned them: a list is then data, unless its elements look like
/// content parts.
bool is_list_of_parts(const Json& content) {
  return std::all_of(content.begin(), content.end(), [](const Json& part) {
    return part.is_string() || (part.is_object() && (part.contains("type") || part.contains("text")));
  });
}

std::string content_from_json(const Json& message, Role role, const std::string& where) {
  const Json* content = member(message, "content");
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (role == Role::tool && !(content->is_array() && is_list_of_parts(*content))) {
    check_nesting(*content, where);
    return python_json(*content);
  }
  if (!content->is_array()) throw RequestError(where, "must be a string or an array of parts");
  std::string text;
  for (std::size_t i = 0; i < content->size(); ++i)
    text += text_of_part((*content)[i], fmt::format("{}[{}]", where, i));
  return text;
}

ToolCall tool_call_from_json(const Json& call, std::string where) {
  if (!call.is_object()) throw RequestError(where, "must be an object");
  const Json* function = &call;  // some senders leave out the object around it
  if (call.contains("function")) {
    function = &call["function"];
    where += ".function";
    if (!function->is_object()) throw RequestError(where, "must be an object");
  }
  std::optional<std::string> name = string_member(*function, "name");
  if (!name) throw RequestError(where + ".name", "must be a string");
  ToolCall result;
  result.id = string_member(call, "id").value_or("");
  result.name = *std::move(name);
  if (const Json* arguments = member(*function, "arguments")) {
    check_nesting(*arguments, where + ".arguments");
    result.arguments = replayed_arguments(*arguments);
  }
  return result;
}

std::vector<ToolCall> tool_calls_from_json(const Json& message, const std::string& where) {
  std::vector<ToolCall> calls;
  const Json* array = member(message, "tool_calls");
  if (array == nullptr) return calls;
  if (!array->is_array()) throw RequestError(where, "must be an array");
  for (std::size_t i = 0; i < array->size(); ++i) {
    calls.push_back(tool_call_from_json((*array)[i], fmt::format("{}[{}]", where, i)));
  }
  return calls;
}

Message message_from_json(const Json& json, const std::string& where) {
  if (!json.is_object()) throw RequestError(where, "must be an object");
  Message message;
  message.role = role_from_json(json, where + ".role");
  message.content = content_from_json(json, message.role, where + ".content");
  if (message.role == Role::assistant) {
    message.reasoning = string_member(json, "reasoning_content");
    if (!message.reasoning) message.reasoning = string_member(json, "reasoning");
    message.tool_calls = tool_calls_from_json(json, where + ".tool_calls");
  }
  if (message.role == Role::tool) message.tool_call_id = string_member(json, "tool_call_id").value_or("");
  return message;
}

std::vector<Json> tools_from_json(const Json& request) {
  const Json* tools = member(request, "tools");
  if (tools == nullptr) return {};
  if (!tools->is_array()) throw RequestError("tools", "must be an array");
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    if (!(*tools)[i].is_object()) throw RequestError(where, "must be an object");
    check_nesting((*tools)[i], where);
  }
  return {tools->begin(), tools->end()};
}
}  // namespace

Conversation conversation_from_json(const Json& request) {
  if (!request.is_object()) throw RequestError("", "the request must be a JSON object");
  const Json* messages = member(request, "messages");
  if (messages == nullptr) throw RequestError("messages", "is missing");
  if (!messages->is_array()) throw RequestError("messages", "must be an array");
  Conversation conversation;
  for (std::size_t i = 0; i < messages->size(); ++i) {
    conversation.messages.push_back(message_from_json((*messages)[i], fmt::format("messages[{}]", i)));
  }
  conversation.tools = tools_from_json(request);
  return conversation;
}

PromptOptions prompt_options_from_json(const Json& kwargs, PromptOptions options) {
  if (kwargs.is_null()) return options;
  if (!kwargs.is_object()) throw RequestError("chat_template_kwargs", "must be an object");
  const auto read = [&](const char* name, bool& option) {
    const Json* value = member(kwargs, name);
    if (value == nullptr) return;
    if (!value->is_boolean())
      throw RequestError(fmt::format("chat_template_kwargs.{}", name), "must be true or false");
    option = value->get<bool>();
  };
  read("add_generation_prompt", options.add_generation_prompt);
  read("enable_thinking", options.enable_thinking);
  read("preserve_thinking", options.preserve_thinking);
  read("continue_final_message", options.continue_final_message);
  return options;
}

}  // namespace calla
