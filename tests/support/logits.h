// Made-up logits to sample from.
#pragma once
#include <cstddef>
#include <random>
#include <vector>

namespace calla::test {

using Logits = std::vector<float>;

inline Logits normal_logits(int vocabulary, float deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  Logits logits(static_cast<std::size_t>(vocabulary));
  for (float& logit : logits) logit = normal(random);
  return logits;
}

/// A few tokens far above the rest, as after most tokens of a text.
inline Logits peaked_logits(int vocabulary, unsigned seed) {
  Logits logits = normal_logits(vocabulary, 2.5F, seed);
  std::mt19937 random(seed + 1);
  for (int i = 0; i < 30; ++i)
    logits[random() % logits.size()] = 9 + static_cast<float>(random() % 1000) * 0.008F;
  return logits;
}

}  // namespace calla::test
