// What the engine's tests share: requests, and whole answers.
#pragma once
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace calla::test {

struct Outcome {
  std::vector<Token> tokens;
  std::vector<Token> forced;
  std::vector<float> logprobs;
  std::vector<int> progress;
  GenerationFinished finished;
};

inline Outcome read_all(Generation& generation) {
  Outcome outcome;
  for (;;) {
    const GenerationEvent event = generation.next();
    if (const auto* token = std::get_if<GeneratedToken>(&event)) {
      outcome.tokens.push_back(token->token);
      outcome.logprobs.push_back(token->logprob);
      if (token->forced) outcome.forced.push_back(token->token);
    } else if (const auto* progress = std::get_if<PromptProgress>(&event)) {
      outcome.progress.push_back(progress->done);
    } else {
      outcome.finished = std::get<GenerationFinished>(event);
      return outcome;
    }
  }
}

inline Outcome run(Engine& engine, GenerationRequest request) {
  return read_all(*engine.start(std::move(request)));
}

inline std::vector<Token> counting(Token first, int count) {
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// One after another.
inline std::vector<Token> joined(std::initializer_list<std::vector<Token>> parts) {
  std::vector<Token> tokens;
  for (const std::vector<Token>& part : parts) tokens.insert(tokens.end(), part.begin(), part.end());
  return tokens;
}

inline GenerationRequest request(std::vector<Token> prompt, std::optional<int> max_tokens = {},
                                 std::vector<Token> end_tokens = {}) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.end_tokens = std::move(end_tokens);
  return request;
}

}  // namespace calla::test
