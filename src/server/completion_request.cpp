#include "server/completion_request.h"

#include <utility>

#include <fmt/format.h>

#include "server/generation_fields.h"

namespace calla::server {
namespace {

constexpr int usual_max_tokens = 16;  // what OpenAI's reference says

std::vector<Token> prompt_from_json(const Fields& fields, const std::string& name, const Json& prompt,
                                    const Tokenizer& tokenizer) {
  if (prompt.is_string()) {
    return tokenizer.encode(prompt.get_ref<const std::string&>(), Tokenizer::ControlTokens::recognised);
  }
  if (!prompt.is_array()) fields.refuse(name, "must be a string or an array of token ids");
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    tokens.push_back(token_id(fields, fmt::format("{}[{}]", name, i), prompt[i], tokenizer));
  }
  return tokens;
}

std::vector<std::vector<Token>> prompts(const Fields& fields, const Tokenizer& tokenizer) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) fields.refuse("prompt", "is missing");
  const bool several = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!several) return {prompt_from_json(fields, "prompt", *prompt, tokenizer)};
  if (prompt->size() > static_cast<std::size_t>(most_choices)) {
    fields.refuse("prompt", fmt::format("holds more than {} prompts", most_choices));
  }
  std::vector<std::vector<Token>> result;
  for (std::size_t i = 0; i < prompt->size(); ++i) {
    result.push_back(prompt_from_json(fields, fmt::format("prompt[{}]", i), (*prompt)[i], tokenizer));
  }
  return result;
}

}  // namespace

CompletionRequest completion_request(const Json& body, const Tokenizer& tokenizer) {
  const Fields fields(body);
  GenerationFields common = generation_fields(fields, tokenizer);
  if (!fields.string("suffix").value_or("").empty()) {
    fields.refuse("suffix", "is not supported",
                  "write the prompt with the model's fill-in-the-middle tokens");
  }
  if (fields.integer("best_of", 1, most_choices).value_or(1) > common.choices) {
    fields.refuse("best_of", "is larger than n, which is not supported");
  }
  CompletionRequest request;
  request.choices = common.choices;
  request.stream = common.stream;
  request.include_usage = common.include_usage;
  request.echo = fields.boolean("echo").value_or(false);
  const auto logprobs = fields.integer("logprobs", 0, most_top_logprobs);
  if (logprobs && request.echo) fields.refuse("logprobs", "does not go with echo");

  RawRequest raw;
  raw.sampling = std::move(common.sampling);
  raw.max_tokens =
      fields.has("max_tokens") || fields.has("max_completion_tokens") ? common.max_tokens : usual_max_tokens;
  raw.stop = std::move(common.stop);
  raw.top_logprobs = logprobs ? static_cast<int>(*logprobs) : -1;
  for (std::vector<Token>& prompt : prompts(fields, tokenizer)) {
    request.prompts.push_back(raw);
    request.prompts.back().prompt = std::move(prompt);
  }
  if (request.prompts.size() * static_cast<std::size_t>(request.choices) >
      static_cast<std::size_t>(most_choices)) {
    fields.refuse("n", fmt::format("asks for more than {} choices of all prompts", most_choices));
  }
  return request;
}

}  // namespace calla::server
