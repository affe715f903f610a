// How far one distribution is from another.
#pragma once
#include <algorithm>
#include <cmath>
#include <span>

namespace calla::test {

/// KL(p || q) of the distributions that two rows of logits give.
inline double divergence(std::span<const float> p, std::span<const float> q) {
  const auto log_sum = [](std::span<const float> x) {
    const double top = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const float value : x) sum += std::exp(value - top);
    return top + std::log(sum);
  };
  const double lp = log_sum(p);
  const double lq = log_sum(q);
  double kl = 0;
  for (std::size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i] - lp) * ((p[i] - lp) - (q[i] - lq));
  return kl;
}

}  // namespace calla::test
