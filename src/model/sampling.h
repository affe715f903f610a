// How the next token of a sequence is drawn.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/token.h"

namespace calla {

/// Applied to the logits in this order: logit_bias, repetition, presence and frequency penalty, temperature,
/// top_k, top_p over what top_k left (renormalised), min_p relative to the most probable token, one draw. The
/// draw n of a sequence depends on (seed, n) and the logits alone, so the same seed gives the same tokens
/// whatever else the machine is doing.
struct SamplingParams {
  float temperature = 1.0F;         // 0: always the most probable token, the lowest id among equals
  int top_k = 0;                    // 0: off
  float top_p = 1.0F;               // 1: off
  float min_p = 0.0F;               // 0: off
  float repetition_penalty = 1.0F;  // 1: off. Divides a positive logit and multiplies a negative one, of
                                    // every token that the prompt or the output has
  float presence_penalty = 0.0F;    // subtracted for a token that the output has
  float frequency_penalty = 0.0F;   // subtracted for each time the output has it
  std::vector<std::pair<Token, float>> logit_bias = {};  // added; an infinite bias forbids
  std::uint64_t seed = 0;

  int vocabulary = std::numeric_limits<int>::max();  // ids from here on are never drawn: rows without a token
  std::vector<Token> end_tokens = {};  // drawing one ends the sequence: it is reported and not appended
  int top_logprobs = -1;  // alternatives to report with each token; 0: only its own logprob; -1: none
};

/// Log-probabilities are those of the model itself, log softmax of the logits before bias, penalties and
/// temperature.
struct TokenLogprob {
  Token token = 0;
  float logprob = 0;
};

struct SampledToken {
  int slot = 0;
  Token token = 0;
  bool end = false;                             // one of end_tokens: the slot holds still from here on
  std::string fault = {};                       // if any, no token: the slot is of no use until its reset
  float logprob = 0;                            // where top_logprobs >= 0
  std::vector<TokenLogprob> top_logprobs = {};  // most probable first
};

}  // namespace calla
