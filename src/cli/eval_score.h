// How well a backend predicts given tokens, alone and beside the reference.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>

#include "cli/eval_against.h"
#include "cli/eval_documents.h"
#include "model/backend.h"

namespace calla::cli {

/// What one backend said about the next token, summed over positions.
class Tally {
 public:
  /// `logprob` of the token that came, and whether it was the most probable.
  void add(double logprob, bool hit);

  std::uint64_t positions() const { return positions_; }
  double perplexity() const;  // exp of the mean of -logprob
  double accuracy() const;    // share of positions whose most probable token came

 private:
  std::uint64_t positions_ = 0;
  double sum_ = 0;
  std::uint64_t hits_ = 0;
};

/// The prediction of token `position` of a document.
struct Place {
  std::size_t document = 0;
  std::size_t position = 0;
};

/// Where the most probable tokens differ.
struct Disagreement {
  Place place;
  Token expected = 0;  // that came
  Token reference = 0;
  Token backend = 0;
};

/// Of logits: closer ones may turn over wherever arithmetic rounds elsewhere.
inline constexpr float clear_gap = 0.05F;

struct Comparison {
  Tally reference;
  std::uint64_t agreements = 0;  // positions with the same most probable token
  /// Positions with another one although the reference's is clear: by more than clear_gap above its second.
  std::uint64_t clear_differences = 0;
  double divergence = 0;  // sum over positions of KL(reference || backend), in nats
  double worst_divergence = 0;
  Place worst;
  std::optional<Disagreement> first;
};

struct Evaluation {
  Tally backend;
  std::optional<Comparison> comparison;
};

struct EvalLimits {
  std::size_t window = 0;   // tokens: longer documents are cut, and each piece begins at position 0
  std::size_t prefill = 0;  // tokens of each piece that are read as a prompt, and not scored
  std::uint64_t positions = std::numeric_limits<std::uint64_t>::max();
};

/// How many positions evaluate() is going to score.
std::uint64_t positions_of(std::span<const Document> documents, const EvalLimits& limits);

/// Scores the documents in slot 0, and compares with `reference` unless it is null, in turns of a few tokens,
/// so that no more than a few positions' logits are held. `progress` is told of positions done.
Evaluation evaluate(Backend& backend, ReferenceLogits* reference, std::span<const Document> documents,
                    const EvalLimits& limits, const std::function<void(std::uint64_t done)>& progress);

/// KL(p || q) in nats of two distributions given by their logits, and what p and q give token `next`.
struct Compared {
  double divergence = 0;
  double logprob_p = 0;
  double logprob_q = 0;
};
Compared compare(std::span<const float> p, std::span<const float> q, Token next);

}  // namespace calla::cli
