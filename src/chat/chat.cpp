#include "chat/chat.h"

#include <algorithm>
#include <array>
#include <random>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace calla {
namespace {

constexpr std::string_view think_end = "</think>";
constexpr std::string_view turn_begin = "<|im_start|>";

/// "call_" and 24 random letters and digits: nobody will see the same one twice.
std::string fresh_call_id() {
  constexpr std::string_view alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::random_device entropy;
  std::uniform_int_distribution<std::size_t> letter(0, alphabet.size() - 1);
  std::string id = "call_";
  for (int i = 0; i < 24; ++i) id += alphabet[letter(entropy)];
  return id;
}

/// The budget, cut so that of a limited reply at least a quarter is left for the answer.
std::optional<ThinkingBudget> thinking_budget(const ChatRequest& request, const Tokenizer& tokenizer) {
  if (!request.thinking_budget) return std::nullopt;
  if (*request.thinking_budget < 0) throw RequestError("thinking_budget", "must not be negative");
  ThinkingBudget budget;
  budget.tokens = *request.thinking_budget;
  budget.end = tokenizer.control_token(think_end).value();
  budget.closing = tokenizer.encode("\n</think>\n\n", Tokenizer::ControlTokens::recognised);
  if (request.max_tokens) {
    const int closing = static_cast<int>(budget.closing.size());
    const int answer = std::max(1, *request.max_tokens / 4);
    budget.tokens = std::clamp(*request.max_tokens - closing - answer, 0, budget.tokens);
  }
  return budget;
}

/// Where a turn begins, the first one aside. What a message says never becomes the control token.
std::vector<int> turn_beginnings(std::span<const Token> prompt, const Tokenizer& tokenizer) {
  std::vector<int> positions;
  const std::optional<Token> begin = tokenizer.control_token(turn_begin);
  for (std::size_t i = 1; i < prompt.size(); ++i) {
    if (prompt[i] == begin) positions.push_back(static_cast<int>(i));
  }
  return positions;
}

/// Whether the next prompt is likely to hold the reply token for token: its reasoning stays, or it has none.
/// Between calls of tools the reasoning stays in any case.
bool reply_stays(const ChatRequest& request, const Prompt& prompt) {
  return !prompt.starts_in_reasoning || request.options.preserve_thinking ||
         !request.conversation.tools.empty();
}

}  // namespace

std::string_view name(ChatEnd end) {
  constexpr std::array<std::string_view, 5> names{"stop", "length", "tool_calls", "cancelled", "failed"};
  return names[static_cast<std::size_t>(end)];
}

Chat::Chat(Engine& engine, const Tokenizer& tokenizer, SamplingChoice defaults, std::vector<Token> end_tokens)
    : engine_(&engine),
      tokenizer_(&tokenizer),
      defaults_(std::move(defaults)),
      end_tokens_(std::move(end_tokens)) {
  if (!tokenizer.control_token(think_end)) {
    throw Error("tokenizer.json", "has no </think> token",
                "take the tokenizer that belongs to the checkpoint");
  }
}

Prompt Chat::render(const ChatRequest& request) const {
  PromptOptions options = request.options;
  const std::vector<Message>& messages = request.conversation.messages;
  const bool open_end =
      !messages.empty() && messages.back().role == Role::assistant && messages.back().tool_calls.empty();
  options.continue_final_message =
      options.continue_final_message || (open_end && options.add_generation_prompt);
  return write_prompt(request.conversation, options);
}

ChatStream Chat::start(const ChatRequest& request) const {
  const Prompt prompt = render(request);
  GenerationRequest generation;
  generation.prompt = tokenizer_->encode(prompt);
  generation.sampling = resolve(request.sampling, defaults_);
  generation.sampling.vocabulary = tokenizer_->size();
  generation.sampling.end_tokens = end_tokens_;
  generation.sampling.top_logprobs = request.top_logprobs;
  generation.max_tokens = request.max_tokens;
  generation.boundaries = turn_beginnings(generation.prompt, *tokenizer_);
  generation.reply_continues = reply_stays(request, prompt);
  generation.side_request = request.side_request;
  if (prompt.starts_in_reasoning) generation.budget = thinking_budget(request, *tokenizer_);

  ChatStream stream(*tokenizer_, request, prompt.starts_in_reasoning);
  stream.prompt_ = generation.prompt;
  stream.usage_.prompt_tokens = static_cast<int>(generation.prompt.size());
  stream.generation_ = engine_->start(std::move(generation));
  return stream;
}

ChatStream::ChatStream(const Tokenizer& tokenizer, const ChatRequest& request, bool starts_in_reasoning)
    : tokenizer_(&tokenizer),
      parser_(ToolSet(request.conversation.tools), starts_in_reasoning),
      stops_(request.stop),
      stop_(stops_),
      report_tokens_(request.top_logprobs >= 0) {}

ChatEvent ChatStream::next() {
  while (ready_.empty()) handle(generation_->next());
  ChatEvent event = std::move(ready_.front());
  ready_.pop_front();
  return event;
}

std::optional<ChatEvent> ChatStream::next(Seconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (ready_.empty()) {
    const std::optional<GenerationEvent> event =
        generation_->next(deadline - std::chrono::steady_clock::now());
    if (!event) return std::nullopt;
    handle(*event);
  }
  return next();
}

void ChatStream::handle(const GenerationEvent& event) {
  if (const auto* token = std::get_if<GeneratedToken>(&event)) {
    // What was under way when a stop string came is not part of the reply.
    if (!stop_.matched()) take(*token);
  } else if (const auto* progress = std::get_if<PromptProgress>(&event)) {
    ready_.emplace_back(*progress);
  } else {
    finish(std::get<GenerationFinished>(event));
  }
}

void ChatStream::take(const GeneratedToken& token) {
  const bool reasoning = parser_.in_reasoning();
  ids_.push_back(token.token);
  ++usage_.completion_tokens;
  if (reasoning) ++usage_.reasoning_tokens;
  if (report_tokens_) ready_.emplace_back(ChatToken{token, reasoning});

  const bool control = tokenizer_->is_control(token.token);
  std::vector<ReplyEvent> events;
  // A control token never completes a code point that ordinary tokens have begun.
  if (control) parser_.feed(assembler_.finish(), events);
  const std::string_view bytes = tokenizer_->bytes(token.token);
  parser_.feed(control ? std::string(bytes) : assembler_.push(bytes), events, control);
  translate(events);
}

void ChatStream::translate(std::vector<ReplyEvent>& events) {
  for (ReplyEvent& event : events) {
    if (stop_.matched()) return;
    if (auto* content = std::get_if<ContentDelta>(&event)) {
      pass_content(stop_.push(content->text));
      if (stop_.matched()) generation_->cancel();
    } else if (auto* begin = std::get_if<ToolCallBegin>(&event)) {
      // A stop string cannot reach over a call: what was held back for one belongs before it.
      pass_content(stop_.finish());
      stop_ = StopStrings(stops_);
      ready_.emplace_back(ChatToolCall{begin->index, fresh_call_id(), std::move(begin->name)});
    } else if (auto* end = std::get_if<ToolCallEnd>(&event)) {
      called_tool_ = true;
      ready_.emplace_back(*end);
    } else {
      std::visit(
          [&](auto& other) {
            if constexpr (std::is_constructible_v<ChatEvent, decltype(other)>)
              ready_.emplace_back(std::move(other));
          },
          event);
    }
  }
}

void ChatStream::pass_content(std::string text) {
  if (!text.empty()) ready_.emplace_back(ContentDelta{std::move(text)});
}

void ChatStream::finish(const GenerationFinished& finished) {
  ChatFinished end;
  end.timing = finished;
  end.error = finished.error;
  if (!stop_.matched()) {
    std::vector<ReplyEvent> events;
    parser_.feed(assembler_.finish(), events);
    parser_.finish(finished.end == GenerationEnd::stop ? ReplyEnd::stop : ReplyEnd::length, events);
    translate(events);
    pass_content(stop_.finish());
  }
  if (stop_.matched()) {
    end.end = ChatEnd::stop;
  } else if (finished.end == GenerationEnd::stop) {
    end.end = called_tool_ ? ChatEnd::tool_calls : ChatEnd::stop;
  } else {
    end.end = finished.end == GenerationEnd::length      ? ChatEnd::length
              : finished.end == GenerationEnd::cancelled ? ChatEnd::cancelled
                                                         : ChatEnd::failed;
  }
  if (finished.end_token && !stop_.matched()) {
    ids_.push_back(*finished.end_token);
    ++usage_.completion_tokens;
  }
  usage_.cached_tokens = finished.cached_tokens;
  end.usage = usage_;
  end.ids = ids_;
  ready_.emplace_back(std::move(end));
}

}  // namespace calla
