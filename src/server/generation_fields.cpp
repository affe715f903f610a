#include "server/generation_fields.h"

#include <array>
#include <charconv>
#include <limits>

#include <fmt/format.h>

namespace calla::server {
namespace {

constexpr std::size_t most_stops = 32;

std::optional<int> token_limit(const Fields& fields, std::string_view name) {
  const auto limit = fields.integer(name, -1, std::numeric_limits<std::int32_t>::max());
  if (!limit || *limit == -1) return std::nullopt;
  if (*limit == 0) fields.refuse(name, "must be at least 1, or -1 for all that the context has room for");
  return static_cast<int>(*limit);
}

std::vector<std::pair<Token, float>> logit_bias(const Fields& fields, const Tokenizer& tokenizer) {
  std::vector<std::pair<Token, float>> result;
  if (!fields.object("logit_bias")) return result;
  for (const auto& [key, bias] : fields.find("logit_bias")->items()) {
    const std::string name = fmt::format("logit_bias[{}]", quote(key));
    Token token = 0;
    const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (fault != std::errc() || end != key.data() + key.size() || token < 0 || token >= tokenizer.size()) {
      fields.refuse(name, fmt::format("is no token id from 0 to {}", tokenizer.size() - 1));
    }
    if (!bias.is_number()) fields.refuse(name, "must be a number");
    result.emplace_back(token, static_cast<float>(bias.get<double>()));
  }
  return result;
}

SamplingChoice sampling_choice(const Fields& fields, const Tokenizer& tokenizer) {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  SamplingChoice choice;
  choice.temperature = fields.number("temperature");
  choice.top_p = fields.number("top_p");
  choice.min_p = fields.number("min_p");
  choice.repetition_penalty = fields.number("repetition_penalty");
  choice.presence_penalty = fields.number("presence_penalty");
  choice.frequency_penalty = fields.number("frequency_penalty");
  choice.logit_bias = logit_bias(fields, tokenizer);
  if (const auto k = fields.integer("top_k", -1, std::numeric_limits<std::int32_t>::max())) {
    choice.top_k = static_cast<int>(*k);
  }
  const auto seed = fields.integer("seed", std::numeric_limits<std::int64_t>::min(), most);
  if (seed && *seed != -1) choice.seed = static_cast<std::uint64_t>(*seed);
  return choice;
}

/// What would change the answer, and is not there: better refused than left out silently.
void refuse_unsupported(const Fields& fields) {
  constexpr std::array<const char*, 7> constraints{"guided_json",    "guided_regex",       "guided_choice",
                                                   "guided_grammar", "structured_outputs", "grammar",
                                                   "json_schema"};
  for (const char* name : constraints) {
    if (fields.has(name)) fields.refuse(name, "is not supported", "leave it out");
  }
}

}  // namespace

GenerationFields generation_fields(const Fields& fields, const Tokenizer& tokenizer) {
  refuse_unsupported(fields);
  GenerationFields result;
  result.sampling = sampling_choice(fields, tokenizer);
  const std::optional<int> old_limit = token_limit(fields, "max_tokens");
  const std::optional<int> limit = token_limit(fields, "max_completion_tokens");
  result.max_tokens = limit ? limit : old_limit;
  result.stop = fields.strings("stop");
  if (result.stop.size() > most_stops)
    fields.refuse("stop", fmt::format("has more than {} strings", most_stops));
  result.choices = static_cast<int>(fields.integer("n", 1, most_choices).value_or(1));
  result.stream = fields.boolean("stream").value_or(false);
  if (const auto options = fields.object("stream_options")) {
    result.include_usage = options->boolean("include_usage").value_or(false);
  }
  result.side_request = !fields.boolean("cache_prompt").value_or(true);
  return result;
}

Token token_id(const Fields& fields, const std::string& name, const Json& value, const Tokenizer& tokenizer) {
  const bool fits = value.is_number_integer() && value.get<std::int64_t>() >= 0 &&
                    value.get<std::int64_t>() < tokenizer.size();
  if (!fits) fields.refuse(name, fmt::format("is no token id from 0 to {}", tokenizer.size() - 1));
  return value.get<Token>();
}

SamplingChoice sampling_of_choice(const SamplingChoice& sampling, int choice) {
  SamplingChoice result = sampling;
  if (result.seed) *result.seed += static_cast<std::uint64_t>(choice);
  return result;
}

}  // namespace calla::server
