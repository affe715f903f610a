#include "server/chat_request.h"

#include <array>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "base/error.h"

namespace calla::server {
namespace {

constexpr auto most_tokens = std::numeric_limits<std::int32_t>::max();

void refuse_unsupported(const Fields& fields) {
  for (const char* name : {"functions", "function_call"}) {
    if (fields.has(name)) fields.refuse(name, "is not supported", "use tools and tool_choice");
  }
  for (const char* name : {"audio", "web_search_options"}) {
    if (fields.has(name)) fields.refuse(name, "is not supported", "this model reads and writes text");
  }
  for (const std::string& modality : fields.strings("modalities")) {
    if (modality != "text")
      fields.refuse("modalities", "may hold \"text\" alone", "this model reads and writes text");
  }
  const auto format = fields.object("response_format");
  if (!format) return;
  const std::optional<std::string> type = format->string("type");
  if (!type) format->refuse("type", "is missing");
  if (*type == "text") return;
  if (*type == "json_object" || *type == "json_schema") {
    fields.refuse("response_format", "of type " + *type + " is not supported", "ask for JSON in a message");
  }
  format->refuse("type", "is " + quote(*type) + ", and must be \"text\"");
}

std::optional<bool> thinking_of_effort(const Fields& fields, std::string_view name) {
  const std::optional<std::string> effort = fields.string(name);
  if (!effort) return std::nullopt;
  if (*effort == "none") return false;
  for (const char* known : {"minimal", "low", "medium", "high", "xhigh", "max"}) {
    if (*effort == known) return true;
  }
  fields.refuse(name, "is " + quote(*effort) + ", and must be none, minimal, low, medium or high");
}

/// Whether to think: said for the template, to this server, in the manner of routers, or as an effort; the
/// first that is there counts.
PromptOptions prompt_options(const Fields& fields, PromptOptions options) {
  std::optional<bool> thinking;
  if (const auto kwargs = fields.object("chat_template_kwargs")) {
    options = prompt_options_from_json(*fields.find("chat_template_kwargs"), options);
    thinking = kwargs->boolean("enable_thinking");
  }
  options.add_generation_prompt = true;
  const std::optional<bool> own = fields.boolean("enable_thinking");
  std::optional<bool> router;
  if (const auto reasoning = fields.object("reasoning")) {
    router = reasoning->boolean("enabled");
    const std::optional<bool> effort = thinking_of_effort(*reasoning, "effort");
    if (!router) router = effort;
  }
  const std::optional<bool> effort = thinking_of_effort(fields, "reasoning_effort");
  for (const auto& said : {own, router, effort}) {
    if (!thinking) thinking = said;
  }
  options.enable_thinking = thinking.value_or(options.enable_thinking);
  return options;
}

std::optional<int> thinking_budget(const Fields& fields) {
  const auto read = [](const Fields& from, const char* name) -> std::optional<int> {
    const auto budget = from.integer(name, -1, most_tokens);
    if (!budget || *budget == -1) return std::nullopt;
    return static_cast<int>(*budget);
  };
  for (const char* name : {"thinking_budget", "thinking_token_budget"}) {
    if (const auto budget = read(fields, name)) return budget;
  }
  const auto reasoning = fields.object("reasoning");
  return reasoning ? read(*reasoning, "max_tokens") : std::nullopt;
}

void check_tools(const std::vector<Json>& tools) {
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Fields tool(tools[i], fmt::format("tools[{}].", i));
    const std::string type = tool.string("type").value_or("function");
    if (type != "function") tool.refuse("type", "is " + quote(type) + ", and must be \"function\"");
    const std::optional<Fields> function = tool.object("function");
    const Fields& declaration = function ? *function : tool;
    const std::optional<std::string> name = declaration.string("name");
    if (!name) declaration.refuse("name", "is missing");
    if (name->empty()) declaration.refuse("name", "is empty");
  }
}

ToolUse::Kind tool_use_kind(const Fields& fields, std::string_view name, const std::string& word) {
  if (word == "auto") return ToolUse::Kind::free;
  if (word == "none") return ToolUse::Kind::forbidden;
  if (word == "required") return ToolUse::Kind::required;
  fields.refuse(name, "is " + quote(word) + ", and must be auto, none, required, or name a function");
}

ToolUse tool_use(const Fields& fields) {
  ToolUse use;
  use.single_call = !fields.boolean("parallel_tool_calls").value_or(true);
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return use;
  if (choice->is_string()) {
    use.kind = tool_use_kind(fields, "tool_choice", choice->get<std::string>());
    return use;
  }
  if (!choice->is_object()) fields.refuse("tool_choice", "must be auto, none, required, or name a function");
  const Fields named = *fields.object("tool_choice");
  const std::string type = named.string("type").value_or("function");
  if (type != "function") {
    use.kind = tool_use_kind(named, "type", type);
    return use;
  }
  const std::optional<Fields> function = named.object("function");
  const Fields& holder = function ? *function : named;
  const std::optional<std::string> name = holder.string("name");
  if (!name || name->empty()) holder.refuse("name", "is missing");
  use.kind = ToolUse::Kind::required;
  use.name = *name;
  return use;
}

int top_logprobs(const Fields& fields) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto count = fields.integer("top_logprobs", 0, most_top_logprobs);
  if (count && *count > 0 && !wanted) fields.refuse("top_logprobs", "needs logprobs to be true");
  return wanted ? static_cast<int>(count.value_or(0)) : -1;
}

}  // namespace

ChatCompletionRequest chat_completion_request(const Json& body, const Tokenizer& tokenizer,
                                              const PromptOptions& defaults) {
  const Fields fields(body);
  refuse_unsupported(fields);
  GenerationFields common = generation_fields(fields, tokenizer);
  ChatCompletionRequest request;
  request.choices = common.choices;
  request.stream = common.stream;
  request.include_usage = common.include_usage;
  request.chat.conversation = conversation_from_json(body);
  check_tools(request.chat.conversation.tools);
  request.chat.options = prompt_options(fields, defaults);
  request.chat.tool_use = tool_use(fields);
  request.chat.sampling = std::move(common.sampling);
  request.chat.max_tokens = common.max_tokens;
  request.chat.thinking_budget = thinking_budget(fields);
  request.chat.stop = std::move(common.stop);
  request.chat.top_logprobs = top_logprobs(fields);
  request.chat.side_request = common.side_request;
  return request;
}

std::vector<ChatRequest> requests_of_choices(const ChatCompletionRequest& request) {
  std::vector<ChatRequest> requests(static_cast<std::size_t>(request.choices), request.chat);
  for (int i = 1; i < request.choices; ++i) {
    requests[static_cast<std::size_t>(i)].sampling = sampling_of_choice(request.chat.sampling, i);
  }
  return requests;
}

}  // namespace calla::server
