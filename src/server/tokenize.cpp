#include "server/tokenize.h"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "server/chat_request.h"
#include "server/errors.h"
#include "server/fields.h"

namespace calla::server {

void tokenize(Call& call) {
  const Json body = object_from_body(call.request().body);
  const Fields fields(body);
  std::vector<Token> tokens;
  if (fields.has("messages")) {
    tokens = call.tokenizer().encode(
        call.model.chat->render(chat_completion_request(body, call.tokenizer(), call.model.defaults).chat));
  } else {
    const char* name = fields.has("prompt") ? "prompt" : "content";
    const std::optional<std::string> text = fields.string(name);
    if (!text) fields.refuse("content", "is missing", "send a text as content, or messages");
    const bool special = fields.boolean("parse_special").value_or(false);
    tokens = call.tokenizer().encode(
        *text, special ? Tokenizer::ControlTokens::recognised : Tokenizer::ControlTokens::as_text);
  }
  call.exchange.answer(json_response({{"tokens", tokens},
                                      {"count", tokens.size()},
                                      {"max_model_len", call.model.chat->engine().context()}}));
}

void detokenize(Call& call) {
  const Json body = object_from_body(call.request().body);
  const Fields fields(body);
  const Json* list = fields.find("tokens");
  if (list == nullptr) fields.refuse("tokens", "is missing");
  if (!list->is_array()) fields.refuse("tokens", "must be an array of token ids");
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < list->size(); ++i) {
    tokens.push_back(token_id(fields, fmt::format("tokens[{}]", i), (*list)[i], call.tokenizer()));
  }
  call.exchange.answer(json_response({{"content", call.tokenizer().decode(tokens)}}));
}

}  // namespace calla::server
