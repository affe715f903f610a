// Sampling on the host, for backends that leave the logits there, and the statement of what every other
// sampler must do.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "model/sampling.h"

namespace calla {

/// A token that may be drawn and its probability.
struct Candidate {
  Token token = 0;
  double probability = 0;
};

/// The sampling state of one sequence.
class Sampler {
 public:
  Sampler() = default;
  Sampler(SamplingParams params, std::span<const Token> prompt);

  /// Draws the next token from logits [vocabulary] and counts it as output unless it is an end token.
  /// SampledToken::slot is left at 0.
  SampledToken draw(std::span<const float> logits);

  /// What draw() would draw from, with exact probabilities: most probable first where top_k, top_p or min_p
  /// is on, else by id. For greedy sampling, the one token.
  std::vector<Candidate> candidates(std::span<const float> logits);

 private:
  std::span<const float> adjust(std::span<const float> logits);

  SamplingParams params_;
  std::unordered_set<Token> prompt_;       // kept only where the repetition penalty needs it
  std::unordered_map<Token, int> output_;  // how often each token was appended
  std::uint64_t draws_ = 0;
  std::vector<float> adjusted_;
};

}  // namespace calla
