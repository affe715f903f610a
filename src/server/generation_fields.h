// The fields that chat completions and completions share.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "chat/sampling_choice.h"
#include "server/fields.h"
#include "text/tokenizer.h"

namespace calla::server {

struct GenerationFields {
  SamplingChoice sampling;
  std::optional<int> max_tokens;
  std::vector<std::string> stop;
  int choices = 1;
  bool stream = false;
  bool include_usage = false;  // in the stream
  bool side_request = false;
};

/// Throws RequestError that names the field. Ranges of sampling values are checked where they are resolved.
GenerationFields generation_fields(const Fields& fields, const Tokenizer& tokenizer);

/// Sampling of one of several choices: their seeds differ.
SamplingChoice sampling_of_choice(const SamplingChoice& sampling, int choice);

/// A token id that the tokenizer has. Throws RequestError that names the field.
Token token_id(const Fields& fields, const std::string& name, const Json& value, const Tokenizer& tokenizer);

inline constexpr int most_choices = 16;
inline constexpr int most_top_logprobs = 20;

}  // namespace calla::server
