#include "server/completion_json.h"

#include <chrono>
#include <string>

#include "text/utf8.h"

namespace calla::server {
namespace {

Json token_json(Token token, float logprob, const Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.bytes(token);
  Json numbers = Json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  return {{"token", mend_utf8(bytes)}, {"logprob", logprob}, {"bytes", std::move(numbers)}};
}

}  // namespace

Json completion_head(const Call& call, std::string_view prefix, std::string_view object) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string_view request = std::string_view(call.record.id).substr(call.record.id.find('_') + 1);
  return {{"id", std::string(prefix).append(request)},
          {"object", object},
          {"created", std::chrono::duration_cast<std::chrono::seconds>(now).count()},
          {"model", call.model.id}};
}

Json usage_json(const ChatUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

Json logprob_json(const GeneratedToken& token, const Tokenizer& tokenizer) {
  Json entry = token_json(token.token, token.logprob, tokenizer);
  Json others = Json::array();
  for (const TokenLogprob& other : token.top_logprobs) {
    others.push_back(token_json(other.token, other.logprob, tokenizer));
  }
  entry["top_logprobs"] = std::move(others);
  return entry;
}

HttpError generation_failed(const ChatFinished& finished) {
  return {500,
          {.message = "the generation failed: " + finished.error,
           .type = "server_error",
           .code = "generation_failed"}};
}

}  // namespace calla::server
