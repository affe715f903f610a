// calla run: one prompt or conversation in, one streamed answer out.
#include <memory>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "chat/collector.h"
#include "cli/answer_printer.h"
#include "cli/commands.h"
#include "cli/conversation_file.h"
#include "cli/open.h"
#include "cli/terminal.h"
#include "text/utf8.h"

namespace calla::cli {
namespace {

ChatRequest make_request(const RunFlags& flags) {
  ChatRequest request;
  if (!flags.messages_file.empty()) {
    if (flags.prompt) throw UsageError("", "PROMPT and --messages exclude each other");
    ConversationFile file = read_conversation_file(flags.messages_file);
    request.conversation = std::move(file.conversation);
    request.options = file.options;
    request.options.add_generation_prompt = true;
  } else {
    if (!flags.prompt && is_terminal(STDIN_FILENO)) {
      throw UsageError("PROMPT", "is missing", "for a conversation: calla chat");
    }
    std::string prompt = flags.prompt ? *flags.prompt : read_standard_input();
    if (const std::size_t at = first_invalid_utf8(prompt); at < prompt.size()) {
      throw Error("PROMPT", fmt::format("is not UTF-8 at byte {}", at));
    }
    request.conversation.messages.push_back({.role = Role::user, .content = std::move(prompt)});
  }
  if (!flags.system.empty()) {
    request.conversation.messages.insert(request.conversation.messages.begin(),
                                         {.role = Role::system, .content = flags.system});
  }
  if (!flags.tools_file.empty()) request.conversation.tools = read_tools_file(flags.tools_file);
  flags.request.apply(request);
  return request;
}

/// The machine-readable object of --json.
Json result_json(const Tokenizer& tokenizer, const std::vector<Token>& prompt, const Reply& reply,
                 const ChatFinished& finished) {
  Json calls = Json::array();
  for (const ToolCall& call : reply.tool_calls) calls.push_back(tool_call_json(call));
  const auto or_null = [](const std::optional<std::string>& text) {
    return text ? Json(*text) : Json(nullptr);
  };
  const ChatUsage& usage = finished.usage;
  const auto rate = [](int tokens, Seconds time) { return time.count() > 0 ? tokens / time.count() : 0.0; };
  return {{"prompt_ids", prompt},
          {"ids", finished.ids},
          {"text", tokenizer.decode(finished.ids)},
          {"reasoning", or_null(reply.reasoning)},
          {"content", or_null(reply.content)},
          {"tool_calls", calls},
          {"finish_reason", name(finished.end)},
          {"usage",
           {{"prompt_tokens", usage.prompt_tokens},
            {"completion_tokens", usage.completion_tokens},
            {"reasoning_tokens", usage.reasoning_tokens},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}}},
          {"timing",
           {{"prefill_seconds", finished.timing.prefill.count()},
            {"decode_seconds", finished.timing.decode.count()},
            {"prefill_tokens_per_second", rate(usage.prompt_tokens, finished.timing.prefill)},
            {"decode_tokens_per_second", rate(usage.completion_tokens, finished.timing.decode)}}}};
}

}  // namespace

void run(const RunFlags& flags) {
  const ChatRequest request = make_request(flags);
  const std::unique_ptr<Model> model = open_model(flags.model);
  ChatStream stream = model->chat.start(request);

  AnswerPrinter printer(flags.show_thinking);
  ChatCollector collector;
  for (;;) {
    const ChatEvent event = stream.next();
    if (flags.json) {
      collector.add(event);
    } else {
      printer.print(event);
    }
    const auto* finished = std::get_if<ChatFinished>(&event);
    if (finished == nullptr) continue;
    if (finished->end == ChatEnd::failed) throw Error(model->engine.device(), finished->error);
    if (flags.json) {
      const Json result = result_json(model->tokenizer, stream.prompt(), collector.reply(), *finished);
      put(STDOUT_FILENO, result.dump() + "\n");
    }
    return;
  }
}

}  // namespace calla::cli
