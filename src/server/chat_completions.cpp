#include "server/chat_completions.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "chat/collector.h"
#include "server/chat_request.h"
#include "server/completion_json.h"
#include "server/errors.h"
#include "server/reply_pump.h"
#include "server/sse.h"

namespace calla::server {
namespace {

std::vector<ChatStream> start(const Call& call, const ChatCompletionRequest& request) {
  std::vector<ChatStream> replies;
  try {
    for (const ChatRequest& choice : requests_of_choices(request))
      replies.push_back(call.model.chat->start(choice));
  } catch (const RequestError& fault) {
    if (fault.code() != "context_length_exceeded") throw;
    throw HttpError(400, {.message = fault.what(),
                          .type = "invalid_request_error",
                          .param = "messages",
                          .code = fault.code()});
  }
  return replies;
}

/// Log-probabilities of a choice that have not been told yet. Reasoning stands apart: clients lay "content"
/// beside the content.
class Logprobs {
 public:
  void add(const ChatToken& token, const Tokenizer& tokenizer) {
    (token.reasoning ? reasoning_ : content_).push_back(logprob_json(token.token, tokenizer));
  }
  Json take() {
    Json result{{"content", std::exchange(content_, Json::array())}};
    if (!reasoning_.empty()) result["reasoning_content"] = std::exchange(reasoning_, Json::array());
    return result;
  }

 private:
  Json content_ = Json::array();
  Json reasoning_ = Json::array();
};

Json message_json(const Reply& reply) {
  Json message{{"role", "assistant"}, {"content", reply.content ? Json(*reply.content) : Json(nullptr)}};
  if (reply.reasoning) message["reasoning_content"] = *reply.reasoning;
  for (const ToolCall& call : reply.tool_calls) {
    message["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", dump(call.arguments)}}}});
  }
  return message;
}

class WholeAnswer {
 public:
  WholeAnswer(Call& call, const ChatCompletionRequest& request)
      : call_(call),
        with_logprobs_(request.chat.top_logprobs >= 0),
        choices_(static_cast<std::size_t>(request.choices)) {}

  void take(std::size_t index, const ChatEvent& event) {
    Choice& choice = choices_[index];
    choice.collector.add(event);
    if (const auto* token = std::get_if<ChatToken>(&event)) choice.logprobs.add(*token, call_.tokenizer());
    if (const auto* finished = std::get_if<ChatFinished>(&event)) {
      if (finished->end == ChatEnd::failed) throw generation_failed(*finished);
      choice.end = finished->end;
    }
  }

  void send() {
    Json answer = completion_head(call_, "chatcmpl-", "chat.completion");
    Json& choices = answer["choices"] = Json::array();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      choices.push_back({{"index", i},
                         {"message", message_json(choices_[i].collector.reply())},
                         {"logprobs", with_logprobs_ ? choices_[i].logprobs.take() : Json(nullptr)},
                         {"finish_reason", name(choices_[i].end)}});
    }
    answer["usage"] = usage_json(call_.record.reply->usage);
    call_.exchange.answer(json_response(answer));
  }

 private:
  struct Choice {
    ChatCollector collector;
    Logprobs logprobs;
    ChatEnd end = ChatEnd::stop;
  };
  Call& call_;
  bool with_logprobs_;
  std::vector<Choice> choices_;
};

class StreamedAnswer {
 public:
  StreamedAnswer(Call& call, const ChatCompletionRequest& request)
      : call_(call),
        head_(completion_head(call, "chatcmpl-", "chat.completion.chunk")),
        include_usage_(request.include_usage),
        with_logprobs_(request.chat.top_logprobs >= 0),
        logprobs_(static_cast<std::size_t>(request.choices)),
        sender_(call.exchange, call.keep_alive) {
    for (std::size_t i = 0; i < logprobs_.size(); ++i) send(i, {{"role", "assistant"}, {"content", ""}});
  }

  void take(std::size_t index, const ChatEvent& event) {
    std::visit([&](const auto& one) { pass(index, one); }, event);
  }
  void pause() { sender_.tick(); }

  void fail(const HttpError& fault) { sender_.send(error_json(fault.body())); }

  void finish() {
    if (include_usage_ && !failed_) {
      Json chunk = head_;
      chunk["choices"] = Json::array();
      chunk["usage"] = usage_json(call_.record.reply->usage);
      sender_.send(chunk);
    }
    sender_.finish();
  }

 private:
  void pass(std::size_t, const PromptProgress&) {}
  void pass(std::size_t index, const ChatToken& token) { logprobs_[index].add(token, call_.tokenizer()); }
  void pass(std::size_t index, const ReasoningDelta& delta) {
    send(index, {{"reasoning_content", delta.text}});
  }
  void pass(std::size_t index, const ContentDelta& delta) { send(index, {{"content", delta.text}}); }
  void pass(std::size_t index, const ChatToolCall& call) {
    send_call(index, {{"index", call.index},
                      {"id", call.id},
                      {"type", "function"},
                      {"function", {{"name", call.name}, {"arguments", ""}}}});
  }
  void pass(std::size_t index, const ToolCallArguments& piece) {
    send_call(index, {{"index", piece.index}, {"function", {{"arguments", piece.json}}}});
  }
  void pass(std::size_t, const ToolCallEnd&) {}
  void pass(std::size_t, const ToolCallCut&) {
  }  // its pieces stay without an end, which finish_reason explains
  void pass(std::size_t index, const ChatFinished& finished) {
    if (finished.end == ChatEnd::failed) {
      const HttpError fault = generation_failed(finished);
      call_.record.fault = fault.what();
      failed_ = true;
      return fail(fault);
    }
    send(index, Json::object(), name(finished.end));
  }

  void send_call(std::size_t index, Json piece) {
    send(index, {{"tool_calls", Json::array({std::move(piece)})}});
  }

  void send(std::size_t index, Json delta, std::optional<std::string_view> finish = std::nullopt) {
    Json chunk = head_;
    chunk["choices"] = Json::array({{{"index", index},
                                     {"delta", std::move(delta)},
                                     {"logprobs", with_logprobs_ ? logprobs_[index].take() : Json(nullptr)},
                                     {"finish_reason", finish ? Json(*finish) : Json(nullptr)}}});
    if (include_usage_) chunk["usage"] = nullptr;
    sender_.send(chunk);
  }

  Call& call_;
  Json head_;
  bool include_usage_;
  bool with_logprobs_;
  bool failed_ = false;
  std::vector<Logprobs> logprobs_;
  EventSender sender_;
};

}  // namespace

void chat_completions(Call& call) {
  const ChatCompletionRequest request =
      chat_completion_request(object_from_body(call.request().body), call.tokenizer(), call.model.defaults);
  std::vector<ChatStream> replies = start(call, request);
  if (!request.stream) {
    WholeAnswer answer(call, request);
    const Abandoned end =
        pump(call, replies, request.choices,
             {.event = [&](std::size_t i, const ChatEvent& event) { answer.take(i, event); }});
    if (end == Abandoned::stopping) throw shutting_down();
    if (end == Abandoned::no) answer.send();
    return;
  }
  StreamedAnswer answer(call, request);
  const Abandoned end = pump(call, replies, request.choices,
                             {.event = [&](std::size_t i, const ChatEvent& event) { answer.take(i, event); },
                              .pause = [&] { answer.pause(); }});
  call.record.reply->streamed = true;
  if (end == Abandoned::client_gone) return;
  if (end == Abandoned::stopping) answer.fail(shutting_down());
  answer.finish();
}

}  // namespace calla::server
