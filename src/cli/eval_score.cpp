#include "cli/eval_score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace calla::cli {
namespace {

// Tokens scored at a time: beside the reference few, since the logits of a 35B are a megabyte a position.
constexpr std::size_t piece = 512;
constexpr std::size_t compared_piece = 32;

/// The lowest id among the largest.
Token most_probable(std::span<const float> logits) {
  return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// How far the largest is above the next one.
float gap(std::span<const float> logits) {
  float first = -std::numeric_limits<float>::infinity();
  float second = first;
  for (const float logit : logits) {
    second = std::max(second, std::min(first, logit));
    first = std::max(first, logit);
  }
  return first - second;
}

/// log of the sum of exp, in double.
double log_total(std::span<const float> logits) {
  const double peak = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(double{logit} - peak);
  return peak + std::log(total);
}

double logprob_of(std::span<const float> logits, Token token) {
  return double{logits[static_cast<std::size_t>(token)]} - log_total(logits);
}

/// One pass over a window: a run of a document's tokens, the first of which is given.
class WindowScorer {
 public:
  WindowScorer(Backend& backend, ReferenceLogits* reference, Evaluation& result)
      : backend_(backend), reference_(reference), result_(result) {}

  /// An empty slot that has read `prompt`.
  void begin(std::size_t document, std::span<const Token> prompt) {
    backend_.reset(0);
    if (!prompt.empty()) backend_.prefill(0, prompt, false);
    if (reference_ != nullptr) reference_->begin(document, prompt);
  }

  /// Feeds `tokens`; after token i comes next[i], which is the token at `place` + i of its document.
  void score(std::span<const Token> tokens, std::span<const Token> next, Place place) {
    std::vector<float> held;  // the reference's logits of these tokens
    if (reference_ != nullptr) {
      reference_->score(tokens, [&](std::size_t, std::span<const float> logits) {
        held.insert(held.end(), logits.begin(), logits.end());
      });
    }
    backend_.score(0, tokens, [&](std::size_t i, std::span<const float> logits) {
      const Place here{place.document, place.position + i};
      if (reference_ == nullptr) {
        result_.backend.add(logprob_of(logits, next[i]), most_probable(logits) == next[i]);
      } else {
        compare_at(std::span(held).subspan(i * logits.size(), logits.size()), logits, next[i], here);
      }
    });
  }

 private:
  void compare_at(std::span<const float> reference, std::span<const float> logits, Token next, Place here) {
    const Compared compared = compare(reference, logits, next);
    const Token theirs = most_probable(reference);
    const Token ours = most_probable(logits);
    result_.backend.add(compared.logprob_q, ours == next);
    Comparison& comparison = *result_.comparison;
    comparison.reference.add(compared.logprob_p, theirs == next);
    comparison.divergence += compared.divergence;
    if (compared.divergence > comparison.worst_divergence) {
      comparison.worst_divergence = compared.divergence;
      comparison.worst = here;
    }
    if (ours == theirs) {
      ++comparison.agreements;
      return;
    }
    if (gap(reference) > clear_gap) ++comparison.clear_differences;
    if (!comparison.first) {
      comparison.first = {.place = here, .expected = next, .reference = theirs, .backend = ours};
    }
  }

  Backend& backend_;
  ReferenceLogits* reference_;
  Evaluation& result_;
};

}  // namespace

void Tally::add(double logprob, bool hit) {
  ++positions_;
  sum_ += logprob;
  hits_ += hit ? 1 : 0;
}

double Tally::perplexity() const { return std::exp(-sum_ / static_cast<double>(positions_)); }
double Tally::accuracy() const { return static_cast<double>(hits_) / static_cast<double>(positions_); }

Compared compare(std::span<const float> p, std::span<const float> q, Token next) {
  const double total_p = log_total(p);
  const double total_q = log_total(q);
  double divergence = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double log_p = double{p[i]} - total_p;
    divergence += std::exp(log_p) * (log_p - (double{q[i]} - total_q));
  }
  const auto at = static_cast<std::size_t>(next);
  return {.divergence = std::max(divergence, 0.0),  // rounding may take it below
          .logprob_p = double{p[at]} - total_p,
          .logprob_q = double{q[at]} - total_q};
}

std::uint64_t positions_of(std::span<const Document> documents, const EvalLimits& limits) {
  std::uint64_t positions = 0;
  for (const Document& document : documents) {
    for (std::size_t begin = 0; begin < document.tokens.size(); begin += limits.window) {
      const std::size_t size = std::min(limits.window, document.tokens.size() - begin);
      positions += size - 1 - std::min(limits.prefill, size - 1);
    }
  }
  return std::min(positions, limits.positions);
}

Evaluation evaluate(Backend& backend, ReferenceLogits* reference, std::span<const Document> documents,
                    const EvalLimits& limits, const std::function<void(std::uint64_t done)>& progress) {
  Evaluation result;
  if (reference != nullptr) result.comparison.emplace();
  WindowScorer scorer(backend, reference, result);
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const std::span<const Token> tokens = documents[d].tokens;
    for (std::size_t begin = 0; begin < tokens.size(); begin += limits.window) {
      const auto window = tokens.subspan(begin, std::min(limits.window, tokens.size() - begin));
      std::size_t done = std::min(limits.prefill, window.size() - 1);
      if (done + 1 < window.size()) scorer.begin(d, window.first(done));
      while (done + 1 < window.size()) {
        const std::uint64_t left = limits.positions - result.backend.positions();
        const std::size_t most = reference == nullptr ? piece : compared_piece;
        const auto count = std::min<std::uint64_t>({most, window.size() - 1 - done, left});
        if (count == 0) return result;
        scorer.score(window.subspan(done, count), window.subspan(done + 1, count), {d, begin + done + 1});
        done += count;
        progress(result.backend.positions());
      }
    }
  }
  return result;
}

}  // namespace calla::cli
