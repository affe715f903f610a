#include "model/sampler.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "model/philox.h"

namespace calla {
namespace {

/// The `count` tokens with the largest logits, largest first, the lower id first among equals.
std::vector<Token> largest(std::span<const float> logits, std::size_t count) {
  std::vector<Token> order(std::min(count, logits.size()));
  std::vector<Token> ids(logits.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Token>(i);
  std::partial_sort_copy(ids.begin(), ids.end(), order.begin(), order.end(), [&](Token a, Token b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  return order;
}

/// log of the sum of exp over all logits.
double log_sum_exp(std::span<const float> logits) {
  const double peak{*std::max_element(logits.begin(), logits.end())};
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - peak);
  return peak + std::log(sum);
}

/// Keeps the shortest beginning whose weights reach the share `top_p` of `total`.
void cut_top_p(std::vector<Candidate>& sorted, double total, double top_p) {
  double sum = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    sum += sorted[i].probability;
    if (sum >= top_p * total) {
      sorted.resize(i + 1);
      return;
    }
  }
}

void normalise(std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.probability;
  for (Candidate& c : candidates) c.probability /= total;
}

}  // namespace

Sampler::Sampler(SamplingParams params, std::span<const Token> prompt) : params_(std::move(params)) {
  if (params_.repetition_penalty != 1.0F) prompt_.insert(prompt.begin(), prompt.end());
}

std::span<const float> Sampler::adjust(std::span<const float> logits) {
  logits = logits.first(std::min(logits.size(), static_cast<std::size_t>(params_.vocabulary)));
  const bool penalised =
      (params_.presence_penalty != 0 || params_.frequency_penalty != 0) && !output_.empty();
  const bool repeated = params_.repetition_penalty != 1.0F;
  if (params_.logit_bias.empty() && !penalised && !repeated) return logits;

  adjusted_.assign(logits.begin(), logits.end());
  const auto each = [&](Token token, auto change) {
    if (token >= 0 && static_cast<std::size_t>(token) < adjusted_.size())
      change(adjusted_[static_cast<std::size_t>(token)]);
  };
  for (const auto& [token, bias] : params_.logit_bias)
    each(token, [bias = bias](float& logit) { logit += bias; });
  if (repeated) {
    const auto repeat = [&](float& logit) {
      logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    };
    for (const Token token : prompt_) each(token, repeat);
    for (const auto& [token, count] : output_) {
      if (!prompt_.contains(token)) each(token, repeat);
    }
  }
  if (penalised) {
    for (const auto& [token, count] : output_) {
      each(token, [&, count = count](float& logit) {
        logit -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
      });
    }
  }
  return adjusted_;
}

std::vector<Candidate> Sampler::candidates(std::span<const float> logits) {
  const std::span<const float> adjusted = adjust(logits);
  if (params_.temperature <= 0) {
    const auto best = std::max_element(adjusted.begin(), adjusted.end());
    return {{static_cast<Token>(best - adjusted.begin()), 1.0}};
  }

  const double temperature{params_.temperature};
  const double top_p{params_.top_p};
  const double min_p{params_.min_p};
  const double peak{*std::max_element(adjusted.begin(), adjusted.end())};
  const auto weight = [&](std::size_t token) {
    return std::exp((static_cast<double>(adjusted[token]) - peak) / temperature);
  };
  const bool ranked = params_.top_k > 0 || top_p < 1 || min_p > 0;
  std::vector<Candidate> kept;
  if (!ranked) {
    kept.reserve(adjusted.size());
    for (std::size_t token = 0; token < adjusted.size(); ++token)
      kept.push_back({static_cast<Token>(token), weight(token)});
  } else {
    // top_p alone could keep the whole vocabulary, but hardly ever keeps more than a few hundred: sort those
    // first, and everything only when their share does not suffice.
    constexpr std::size_t first_attempt = 1024;
    double total = 0;
    if (params_.top_k <= 0) {
      for (std::size_t token = 0; token < adjusted.size(); ++token) total += weight(token);
    }
    std::size_t count = params_.top_k > 0 ? static_cast<std::size_t>(params_.top_k) : first_attempt;
    for (;; count = adjusted.size()) {
      kept.clear();
      double sum = 0;
      for (const Token token : largest(adjusted, count)) {
        kept.push_back({token, weight(static_cast<std::size_t>(token))});
        sum += kept.back().probability;
      }
      if (params_.top_k > 0) total = sum;
      const bool enough = sum >= top_p * total || kept.back().probability < min_p;
      if (params_.top_k > 0 || enough || kept.size() == adjusted.size()) break;
    }
    if (top_p < 1) cut_top_p(kept, total, top_p);
    // The most probable token has weight 1.
    const auto rare = [&](const Candidate& c) { return c.probability < min_p; };
    kept.erase(std::find_if(kept.begin() + 1, kept.end(), rare), kept.end());
  }
  normalise(kept);
  return kept;
}

SampledToken Sampler::draw(std::span<const float> logits) {
  assert(!logits.empty());
  SampledToken sampled;
  const std::vector<Candidate> choices = candidates(logits);
  sampled.token = choices.back().token;
  if (choices.size() > 1) {
    double rest = uniform(params_.seed, draws_);
    for (const Candidate& choice : choices) {
      rest -= choice.probability;
      if (rest < 0) {
        sampled.token = choice.token;
        break;
      }
    }
  }
  ++draws_;

  if (params_.top_logprobs >= 0) {
    const double normaliser = log_sum_exp(logits);
    const auto logprob = [&](Token token) {
      return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(token)]) - normaliser);
    };
    sampled.logprob = logprob(sampled.token);
    for (const Token token : largest(logits, static_cast<std::size_t>(params_.top_logprobs))) {
      sampled.top_logprobs.push_back({token, logprob(token)});
    }
  }
  sampled.end = std::find(params_.end_tokens.begin(), params_.end_tokens.end(), sampled.token) !=
                params_.end_tokens.end();
  if (!sampled.end) ++output_[sampled.token];
  return sampled;
}

}  // namespace calla
