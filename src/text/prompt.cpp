#include "text/prompt.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "text/python_text.h"

namespace calla {
namespace {
constexpr std::string_view tools_head = "# Tools\n\nYou have access to the following functions:\n\n<tools>";
constexpr std::string_view tools_tail = R"(
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls
</IMPORTANT>)";

/// The prompt as it grows, from the format's own words and from what the sender wrote.
class Output {
 public:
  void format(std::string_view words) { prompt_.text += words; }

  void literal(std::string_view text) {
    if (text.empty()) return;
    const std::size_t begin = prompt_.text.size();
    prompt_.text += text;
    if (!prompt_.literal.empty() && prompt_.literal.back().end == begin) {
      prompt_.literal.back().end = prompt_.text.size();
    } else {
      prompt_.literal.push_back({begin, prompt_.text.size()});
    }
  }

  Prompt finish(bool starts_in_reasoning) {
    prompt_.starts_in_reasoning = starts_in_reasoning;
    return std::move(prompt_);
  }

 private:
  Prompt prompt_;
};

using Messages = std::span<const Message>;

bool is_system(const Message& message) {
  return message.role == Role::system || message.role == Role::developer;
}

Messages leading_system_messages(Messages messages) {
  const auto end = std::find_if_not(messages.begin(), messages.end(), is_system);
  return messages.first(static_cast<std::size_t>(end - messages.begin()));
}

void check(Messages messages, const PromptOptions& options) {
  if (messages.empty()) throw RequestError("messages", "must hold at least one message");
  if (std::all_of(messages.begin(), messages.end(), is_system)) {
    throw RequestError("messages", "no user message", "add a message of role user");
  }
  if (!options.continue_final_message) return;
  if (messages.back().role != Role::assistant) {
    throw RequestError("messages", "the final message cannot be continued because it is not the assistant's");
  }
  if (!messages.back().tool_calls.empty()) {
    throw RequestError(fmt::format("messages[{}].tool_calls", messages.size() - 1),
                       "a message with tool calls cannot be continued");
  }
}

/// Where the query in progress begins: the index of the user's last message, results of tools in the user's
/// name aside. Assistant turns after it keep their reasoning. Nothing where all turns belong to it.
std::optional<std::size_t> last_query_index(Messages messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role != Role::user) continue;
    const std::string_view content = python_strip(messages[i].content);
    if (!(content.starts_with("<tool_response>") && content.ends_with("</tool_response>"))) return i;
  }
  return std::nullopt;
}

/// The system messages' texts, with an empty line between two of them.
void write_system_texts(Output& out, Messages messages, std::string_view before_first) {
  std::string_view separator = before_first;
  for (const Message& message : messages) {
    const std::string_view content = python_strip(message.content);
    if (content.empty()) continue;
    out.format(separator);
    out.literal(content);
    separator = "\n\n";
  }
}

void write_system_turn(Output& out, Messages messages, std::span<const Json> tools) {
  if (messages.empty() && tools.empty()) return;
  out.format("<|im_start|>system\n");
  if (!tools.empty()) {
    out.format(tools_head);
    for (const Json& tool : tools) {
      out.format("\n");
      out.literal(python_json(tool));
    }
    out.format(tools_tail);
  }
  write_system_texts(out, messages, tools.empty() ? "" : "\n\n");
  out.format("<|im_end|>\n");
}

void write_user_turn(Output& out, const Message& message) {
  out.format("<|im_start|>user\n");
  out.literal(python_strip(message.content));
  out.format("<|im_end|>\n");
}

struct AssistantText {
  std::string_view reasoning;
  std::string_view content;
};

/// Reasoning that the sender left inside the content is found by its end marker; the template's own rule, to
/// the letter.
AssistantText assistant_text(const Message& message) {
  constexpr std::string_view begin = "<think>";
  constexpr std::string_view end = "</think>";
  const std::string_view content = python_strip(message.content);
  if (message.reasoning) return {python_strip(*message.reasoning), content};
  const std::size_t first_end = content.find(end);
  if (first_end == std::string_view::npos) return {{}, content};
  std::string_view reasoning = strip_trailing_newlines(content.substr(0, first_end));
  const std::size_t last_begin = reasoning.rfind(begin);
  if (last_begin != std::string_view::npos) reasoning.remove_prefix(last_begin + begin.size());
  return {python_strip(reasoning), strip_leading_newlines(content.substr(content.rfind(end) + end.size()))};
}

void write_assistant_text(Output& out, const AssistantText& text, bool keep_reasoning) {
  out.format("<|im_start|>assistant\n");
  if (keep_reasoning) {
    out.format("<think>\n");
    out.literal(text.reasoning);
    out.format("\n</think>\n\n");
  }
  out.literal(text.content);
}

void write_tool_call(Output& out, const ToolCall& call) {
  out.format("<tool_call>\n<function=");
  out.literal(call.name);
  out.format(">\n");
  for (const auto& [name, value] : call.arguments.items()) {
    out.format("<parameter=");
    out.literal(name);
    out.format(">\n");
    out.literal(value.is_string() ? value.get_ref<const std::string&>() : python_json(value));
    out.format("\n</parameter>\n");
  }
  out.format("</function>\n</tool_call>");
}

void write_assistant_turn(Output& out, const Message& message, bool keep_reasoning) {
  const AssistantText text = assistant_text(message);
  write_assistant_text(out, text, keep_reasoning);
  std::string_view separator = text.content.empty() ? "" : "\n\n";
  for (const ToolCall& call : message.tool_calls) {
    out.format(separator);
    write_tool_call(out, call);
    separator = "\n";
  }
  out.format("<|im_end|>\n");
}

/// One of the results in a row, which share a turn of the user.
void write_tool_result(Output& out, const Message& message, bool first, bool last) {
  if (first) out.format("<|im_start|>user");
  out.format("\n<tool_response>\n");
  out.literal(python_strip(message.content));
  out.format("\n</tool_response>");
  if (last) out.format("<|im_end|>\n");
}

/// An assistant turn for the model to go on with. Returns whether it goes on inside the reasoning.
bool write_open_turn(Output& out, const Message& message) {
  const AssistantText text = assistant_text(message);
  if (message.reasoning && !text.reasoning.empty() && text.content.empty()) {
    out.format("<|im_start|>assistant\n<think>\n");
    out.literal(text.reasoning);
    return true;
  }
  write_assistant_text(out, text, true);
  return false;
}

/// The header of the assistant's next turn. Returns whether the model begins inside the reasoning.
bool write_generation_prompt(Output& out, bool enable_thinking) {
  out.format("<|im_start|>assistant\n");
  out.format(enable_thinking ? "<think>\n" : "<think>\n\n</think>\n\n");
  return enable_thinking;
}
}  // namespace

Prompt write_prompt(const Conversation& conversation, const PromptOptions& options) {
  const Messages messages = conversation.messages;
  check(messages, options);
  const Messages system = leading_system_messages(messages);
  const std::optional<std::size_t> last_query = last_query_index(messages);
  const std::size_t closed = messages.size() - (options.continue_final_message ? 1 : 0);
  const auto is_tool = [&](std::size_t i) { return i < messages.size() && messages[i].role == Role::tool; };

  Output out;
  write_system_turn(out, system, conversation.tools);
  for (std::size_t i = system.size(); i < closed; ++i) {
    switch (messages[i].role) {
      case Role::system:
      case Role::developer:  // in its place, where it leaves the text before it as it was
      case Role::user:
        write_user_turn(out, messages[i]);
        break;
      case Role::assistant:
        write_assistant_turn(out, messages[i], options.preserve_thinking || !last_query || i > *last_query);
        break;
      case Role::tool:
        write_tool_result(out, messages[i], i == 0 || !is_tool(i - 1), !is_tool(i + 1));
        break;
    }
  }
  bool in_reasoning = false;
  if (options.continue_final_message) {
    in_reasoning = write_open_turn(out, messages.back());
  } else if (options.add_generation_prompt) {
    in_reasoning = write_generation_prompt(out, options.enable_thinking);
  }
  return out.finish(in_reasoning);
}

}  // namespace calla
