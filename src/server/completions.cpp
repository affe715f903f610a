#include "server/completions.h"

#include <optional>
#include <utility>
#include <vector>

#include "server/completion_json.h"
#include "server/completion_request.h"
#include "server/errors.h"
#include "server/fields.h"
#include "server/generation_fields.h"
#include "server/reply_pump.h"
#include "server/sse.h"
#include "text/utf8.h"

namespace calla::server {
namespace {

std::vector<ChatStream> start(const Call& call, const CompletionRequest& request) {
  std::vector<ChatStream> replies;
  for (const RawRequest& prompt : request.prompts) {
    for (int i = 0; i < request.choices; ++i) {
      RawRequest one = prompt;
      one.sampling = sampling_of_choice(prompt.sampling, i);
      replies.push_back(call.model.chat->complete(one));
    }
  }
  return replies;
}

std::size_t characters(std::string_view text) {
  std::size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U ? 1 : 0;
  return count;
}

/// The older form of log-probabilities: arrays side by side.
class Logprobs {
 public:
  void add(const GeneratedToken& token, const Tokenizer& tokenizer) {
    const std::string text = mend_utf8(tokenizer.bytes(token.token));
    Json others = Json::object();
    for (const TokenLogprob& other : token.top_logprobs)
      others[mend_utf8(tokenizer.bytes(other.token))] = other.logprob;
    tokens_.push_back(text);
    logprobs_.push_back(token.logprob);
    top_.push_back(std::move(others));
    offsets_.push_back(offset_);
    offset_ += characters(text);
  }
  Json take() {
    return {{"tokens", std::exchange(tokens_, Json::array())},
            {"token_logprobs", std::exchange(logprobs_, Json::array())},
            {"top_logprobs", std::exchange(top_, Json::array())},
            {"text_offset", std::exchange(offsets_, Json::array())}};
  }

 private:
  Json tokens_ = Json::array();
  Json logprobs_ = Json::array();
  Json top_ = Json::array();
  Json offsets_ = Json::array();
  std::size_t offset_ = 0;
};

Json choice_json(std::size_t index, std::string text, Json logprobs, std::optional<ChatEnd> end) {
  return {{"text", std::move(text)},
          {"index", index},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", end ? Json(name(*end)) : Json(nullptr)}};
}

/// Gathers what comes of each choice; a stream sends it piece by piece, a whole answer at the end.
class Choices {
 public:
  Choices(const Call& call, const CompletionRequest& request)
      : tokenizer_(&call.tokenizer()),
        with_logprobs_(request.prompts.front().top_logprobs >= 0),
        choices_(request.prompts.size() * static_cast<std::size_t>(request.choices)) {
    if (!request.echo) return;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      choices_[i].text =
          tokenizer_->decode(request.prompts[i / static_cast<std::size_t>(request.choices)].prompt);
    }
  }

  void take(std::size_t index, const ChatEvent& event) {
    Choice& choice = choices_[index];
    if (const auto* delta = std::get_if<ContentDelta>(&event)) choice.text += delta->text;
    if (const auto* token = std::get_if<ChatToken>(&event)) choice.logprobs.add(token->token, *tokenizer_);
    if (const auto* finished = std::get_if<ChatFinished>(&event)) {
      if (finished->end == ChatEnd::failed) throw generation_failed(*finished);
      choice.end = finished->end;
    }
  }

  std::size_t size() const { return choices_.size(); }
  bool has_news(std::size_t index) const { return !choices_[index].text.empty() || choices_[index].end; }
  /// What has come since the last call.
  Json news(std::size_t index) {
    Choice& choice = choices_[index];
    return choice_json(index, std::exchange(choice.text, {}),
                       with_logprobs_ ? choice.logprobs.take() : Json(nullptr), choice.end);
  }

 private:
  struct Choice {
    std::string text;
    Logprobs logprobs;
    std::optional<ChatEnd> end;
  };
  const Tokenizer* tokenizer_;
  bool with_logprobs_;
  std::vector<Choice> choices_;
};

void answer_whole(Call& call, const CompletionRequest& request, std::vector<ChatStream>& replies) {
  Choices choices(call, request);
  const Abandoned end =
      pump(call, replies, request.choices,
           {.event = [&](std::size_t i, const ChatEvent& event) { choices.take(i, event); }});
  if (end == Abandoned::stopping) throw shutting_down();
  if (end == Abandoned::client_gone) return;
  Json answer = completion_head(call, "cmpl-", "text_completion");
  answer["choices"] = Json::array();
  for (std::size_t i = 0; i < choices.size(); ++i) answer["choices"].push_back(choices.news(i));
  answer["usage"] = usage_json(call.record.reply->usage);
  call.exchange.answer(json_response(answer));
}

void answer_streamed(Call& call, const CompletionRequest& request, std::vector<ChatStream>& replies) {
  const Json head = completion_head(call, "cmpl-", "text_completion");
  Choices choices(call, request);
  EventSender sender(call.exchange, call.keep_alive);
  const auto send = [&](Json list, Json usage) {
    Json chunk = head;
    chunk["choices"] = std::move(list);
    if (request.include_usage) chunk["usage"] = std::move(usage);
    sender.send(chunk);
  };
  const auto send_news = [&](std::size_t i) {
    if (choices.has_news(i)) send(Json::array({choices.news(i)}), nullptr);
  };
  for (std::size_t i = 0; i < choices.size(); ++i) send_news(i);  // the prompts, where they are echoed
  try {
    const Abandoned end = pump(call, replies, request.choices,
                               {.event =
                                    [&](std::size_t i, const ChatEvent& event) {
                                      choices.take(i, event);
                                      send_news(i);
                                    },
                                .pause = [&] { sender.tick(); }});
    call.record.reply->streamed = true;
    if (end == Abandoned::client_gone) return;
    if (end == Abandoned::stopping) throw shutting_down();
    if (request.include_usage) send(Json::array(), usage_json(call.record.reply->usage));
  } catch (const HttpError& fault) {
    call.record.fault = fault.what();
    sender.send(error_json(fault.body()));
  }
  sender.finish();
}

}  // namespace

void completions(Call& call) {
  const CompletionRequest request =
      completion_request(object_from_body(call.request().body), call.tokenizer());
  std::vector<ChatStream> replies = start(call, request);
  request.stream ? answer_streamed(call, request, replies) : answer_whole(call, request, replies);
}

}  // namespace calla::server
