#include "chat/chat.h"

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace calla {
namespace {

constexpr std::string_view think_end = "</think>";
constexpr std::string_view turn_begin = "<|im_start|>";
constexpr std::string_view call_begin = "<tool_call>";

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

/// How a reply begins that must call a tool, as far as it is certain. Where the name is the model's to
/// choose, the "=" is too: it may be one token with the name.
std::string call_opening(const ChatRequest& request) {
  const ToolSet tools(request.conversation.tools);
  const ToolUse& use = request.tool_use;
  if (tools.empty()) throw RequestError("tool_choice", "asks for a call, and there are no tools");
  if (!use.name.empty() && !tools.declares(use.name)) {
    throw RequestError("tool_choice", "names " + quote(use.name) + ", which is not among the tools");
  }
  const std::string name = !use.name.empty() ? use.name : tools.only_name().value_or("");
  const std::string opening = std::string(call_begin) + "\n<function";
  return name.empty() ? opening : opening + "=" + name + ">\n";
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

SamplingParams Chat::sampling(const SamplingChoice& choice, int top_logprobs) const {
  SamplingParams params = resolve(choice, defaults_);
  params.vocabulary = tokenizer_->size();
  params.end_tokens = end_tokens_;
  params.top_logprobs = top_logprobs;
  return params;
}

ChatStream Chat::start(const ChatRequest& request) const {
  const Prompt prompt = render(request);
  GenerationRequest generation;
  generation.prompt = tokenizer_->encode(prompt);
  generation.sampling = sampling(request.sampling, request.top_logprobs);
  generation.max_tokens = request.max_tokens;
  generation.boundaries = turn_beginnings(generation.prompt, *tokenizer_);
  generation.reply_continues = reply_stays(request, prompt);
  generation.side_request = request.side_request;
  if (prompt.starts_in_reasoning) generation.budget = thinking_budget(request, *tokenizer_);

  const bool may_call = request.tool_use.kind != ToolUse::Kind::forbidden;
  if (!may_call) {
    // The tools stay in the prompt, for the sake of the prefix cache.
    if (const std::optional<Token> begin = tokenizer_->control_token(call_begin)) {
      generation.sampling.logit_bias.emplace_back(*begin, -std::numeric_limits<float>::infinity());
    }
  }
  ChatStream stream(
      *tokenizer_,
      ReplyParser(may_call ? ToolSet(request.conversation.tools) : ToolSet(), prompt.starts_in_reasoning),
      request.stop, request.top_logprobs >= 0);
  stream.single_call_ = request.tool_use.single_call;
  if (request.tool_use.kind == ToolUse::Kind::required) {
    const std::string opening = call_opening(request);
    const auto encode = [&](std::string_view text) {
      return tokenizer_->encode(text, Tokenizer::ControlTokens::recognised);
    };
    if (prompt.starts_in_reasoning) {
      constexpr std::string_view closing = "\n</think>";
      generation.opening = AnswerOpening{.after = tokenizer_->control_token(think_end).value(),
                                         .closing = encode(closing),
                                         .tokens = encode("\n\n" + opening)};
      if (generation.budget) generation.budget->closing = generation.opening->closing;
    } else {
      for (const Token token : encode(opening)) {
        generation.prompt.push_back(token);
        stream.read(token);
      }
    }
  }
  stream.start(*engine_, std::move(generation));
  return stream;
}

ChatStream Chat::complete(const RawRequest& request) const {
  GenerationRequest generation;
  generation.prompt = request.prompt;
  generation.sampling = sampling(request.sampling, request.top_logprobs);
  generation.max_tokens = request.max_tokens;
  ChatStream stream(*tokenizer_, std::nullopt, request.stop, request.top_logprobs >= 0);
  stream.start(*engine_, std::move(generation));
  return stream;
}

ChatStream::ChatStream(const Tokenizer& tokenizer, std::optional<ReplyParser> parser,
                       std::vector<std::string> stops, bool report_tokens)
    : tokenizer_(&tokenizer),
      parser_(std::move(parser)),
      stops_(std::move(stops)),
      stop_(stops_),
      report_tokens_(report_tokens) {}

void ChatStream::start(Engine& engine, GenerationRequest request) {
  prompt_ = request.prompt;
  usage_.prompt_tokens = static_cast<int>(prompt_.size());
  generation_ = engine.start(std::move(request));
}

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
    // What was under way when the reply ended is not part of it.
    if (!cut_) take(*token);
  } else if (const auto* progress = std::get_if<PromptProgress>(&event)) {
    ready_.emplace_back(*progress);
  } else {
    finish(std::get<GenerationFinished>(event));
  }
}

void ChatStream::take(const GeneratedToken& token) {
  const bool reasoning = parser_ && parser_->in_reasoning();
  ids_.push_back(token.token);
  ++usage_.completion_tokens;
  if (reasoning) ++usage_.reasoning_tokens;
  if (report_tokens_) ready_.emplace_back(ChatToken{token, reasoning});
  read(token.token);
}

void ChatStream::read(Token token) {
  const bool control = tokenizer_->is_control(token);
  const std::string_view bytes = tokenizer_->bytes(token);
  std::vector<ReplyEvent> events;
  const auto feed = [&](std::string text, bool is_control) {
    if (parser_) {
      parser_->feed(text, events, is_control);
    } else if (!text.empty()) {
      events.emplace_back(ContentDelta{std::move(text)});
    }
  };
  // A control token never completes a code point that ordinary tokens have begun.
  if (control) feed(assembler_.finish(), false);
  feed(control ? std::string(bytes) : assembler_.push(bytes), control);
  translate(events);
}

void ChatStream::cut() {
  cut_ = true;
  generation_->cancel();
}

void ChatStream::translate(std::vector<ReplyEvent>& events) {
  for (ReplyEvent& event : events) {
    if (cut_) return;
    if (auto* content = std::get_if<ContentDelta>(&event)) {
      pass_content(stop_.push(content->text));
      if (stop_.matched()) cut();
    } else if (auto* begin = std::get_if<ToolCallBegin>(&event)) {
      // A stop string cannot reach over a call: what was held back for one belongs before it.
      pass_content(stop_.finish());
      stop_ = StopStrings(stops_);
      ready_.emplace_back(ChatToolCall{begin->index, fresh_call_id(), std::move(begin->name)});
    } else if (auto* end = std::get_if<ToolCallEnd>(&event)) {
      called_tool_ = true;
      ready_.emplace_back(*end);
      if (single_call_) cut();
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
  if (!cut_) {
    std::vector<ReplyEvent> events;
    std::string rest = assembler_.finish();
    if (parser_) {
      parser_->feed(rest, events);
      parser_->finish(finished.end == GenerationEnd::stop ? ReplyEnd::stop : ReplyEnd::length, events);
    } else if (!rest.empty()) {
      events.emplace_back(ContentDelta{std::move(rest)});
    }
    translate(events);
    if (!cut_) pass_content(stop_.finish());
  }
  if (cut_) {
    end.end = stop_.matched() ? ChatEnd::stop : ChatEnd::tool_calls;
  } else if (finished.end == GenerationEnd::stop) {
    end.end = called_tool_ ? ChatEnd::tool_calls : ChatEnd::stop;
  } else {
    end.end = finished.end == GenerationEnd::length      ? ChatEnd::length
              : finished.end == GenerationEnd::cancelled ? ChatEnd::cancelled
                                                         : ChatEnd::failed;
  }
  if (finished.end_token && !cut_) {
    ids_.push_back(*finished.end_token);
    ++usage_.completion_tokens;
  }
  usage_.cached_tokens = finished.cached_tokens;
  end.usage = usage_;
  end.ids = ids_;
  ready_.emplace_back(std::move(end));
}

}  // namespace calla
