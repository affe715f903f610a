// Norms and the end of a layer against double loops.
#include "cuda/norm.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "cuda/arrays.h"
#include "cuda/combine.h"
#include "cuda/gemm.h"

namespace calla::cuda {
namespace {

std::vector<float> random_floats(std::size_t count, unsigned seed, float size) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<double> normed_row(const std::vector<float>& x, const std::vector<float>& gain, std::size_t row) {
  const std::size_t width = gain.size();
  double squares = 0;
  for (std::size_t c = 0; c < width; ++c)
    squares += static_cast<double>(x[row * width + c]) * x[row * width + c];
  std::vector<double> out(width);
  for (std::size_t c = 0; c < width; ++c)
    out[c] =
        x[row * width + c] / std::sqrt(squares / static_cast<double>(width) + rms_norm_epsilon) * gain[c];
  return out;
}

void test_norm(int hidden, int tokens) {
  const auto width = static_cast<std::size_t>(hidden);
  const auto count = static_cast<std::size_t>(tokens);
  const std::vector<float> x = random_floats(width * count, 1, 3);
  const std::vector<float> gain = random_floats(width, 2, 1);
  const auto x_device = on_device(x);
  const auto gain_device = on_device(gain);
  const auto plain = poisoned<__half>(width * (count + 1));
  const auto high = poisoned<__half>(width * (count + 1));
  const auto low = poisoned<__half>(width * (count + 1));
  const auto sums = poisoned<float>(width / 64 * (count + 1));
  rms_norm(x_device.data(), gain_device.data(), hidden, tokens, plain.data(), nullptr);
  rms_norm_split(x_device.data(), gain_device.data(), hidden, tokens,
                 {.high = high.data(), .low = low.data(), .sums = sums.data()}, nullptr);
  const auto p = on_host(plain);
  const auto h = on_host(high);
  const auto l = on_host(low);
  const auto s = on_host(sums);
  EXPECT_EQ(0, std::memcmp(p.data(), h.data(), p.size() * sizeof(__half)));
  for (std::size_t t = 0; t < count; ++t) {
    const std::vector<double> expected = normed_row(x, gain, t);
    double sum = 0;
    for (std::size_t c = 0; c < width; ++c) {
      const std::size_t at = t * width + c;
      ASSERT_NEAR(__half2float(h[at]), expected[c], std::abs(expected[c]) * 0x1p-11 + 1e-6) << t << ' ' << c;
      ASSERT_NEAR(__half2float(h[at]) + static_cast<double>(__half2float(l[at])) * low_scale, expected[c],
                  std::abs(expected[c]) * 1e-6 + 1e-7)
          << t << ' ' << c;
      sum += expected[c];
      if (c % 64 == 63) {
        ASSERT_NEAR(s[at / 64], sum, 1e-4) << t << ' ' << c;
        sum = 0;
      }
    }
  }
  EXPECT_TRUE(std::isnan(__half2float(h[width * count])));
  EXPECT_TRUE(std::isnan(s[width / 64 * count]));
}

TEST(Norm, PlainAndSplit) {
  for (const int tokens : {1, 8, 77}) {
    test_norm(2048, tokens);
    test_norm(512, tokens);
  }
}

template <Shape S>
void test_combine(int tokens) {
  constexpr int top = Shape::experts_per_token;
  constexpr std::size_t width = S.hidden;
  const auto count = static_cast<std::size_t>(tokens);
  const std::size_t routes = count * top;
  const auto halves = [](const std::vector<float>& values) {
    std::vector<__half> out;
    for (const float value : values) out.push_back(__float2half(value));
    return out;
  };
  const std::vector<__half> answers = halves(random_floats(routes * width, 3, 1));
  const std::vector<__half> shared = halves(random_floats(count * width, 4, 1));
  const std::vector<float> x = random_floats(count * width, 5, 2);
  const std::vector<float> gain = random_floats(width, 6, 1);
  const std::vector<float> shares = random_floats(routes, 7, 0.1F);
  const std::vector<float> logits = random_floats(count * (S.experts + 1), 8, 2);
  std::vector<int> positions(routes);
  for (std::size_t i = 0; i < routes; ++i) positions[i] = static_cast<int>((i * 7919) % routes);

  const auto answers_device = on_device(answers);
  const auto shared_device = on_device(shared);
  const auto positions_device = on_device(positions);
  const auto shares_device = on_device(shares);
  const auto logits_device = on_device(logits);
  const auto gain_device = on_device(gain);
  const auto x_device = on_device(x);
  const auto normed = poisoned<__half>((count + 1) * width);
  const Answers all{.experts = answers_device.data(),
                    .shared = shared_device.data(),
                    .positions = positions_device.data(),
                    .shares = shares_device.data(),
                    .logits = logits_device.data()};
  combine<S>(all, tokens, x_device.data(), gain_device.data(), normed.data(), nullptr);
  const std::vector<float> got = on_host(x_device);
  const std::vector<__half> got_normed = on_host(normed);
  for (std::size_t t = 0; t < count; ++t) {
    const double gate = 1 / (1 + std::exp(-static_cast<double>(logits[t * (S.experts + 1) + S.experts])));
    for (std::size_t c = 0; c < width; ++c) {
      double sum = gate * __half2float(shared[t * width + c]);
      for (int i = 0; i < top; ++i) {
        const std::size_t route = t * top + static_cast<std::size_t>(i);
        sum += static_cast<double>(shares[route]) *
               __half2float(answers[static_cast<std::size_t>(positions[route]) * width + c]);
      }
      ASSERT_NEAR(got[t * width + c], x[t * width + c] + sum / answer_scale, 1e-4)
          << t << ' ' << c;  // of some tens
    }
    const std::vector<double> expected = normed_row(got, gain, t);
    for (std::size_t c = 0; c < width; ++c)
      ASSERT_NEAR(__half2float(got_normed[t * width + c]), expected[c],
                  std::abs(expected[c]) * 0x1p-11 + 1e-6);
  }
  EXPECT_TRUE(std::isnan(__half2float(got_normed[count * width])));

  // Without a norm.
  const auto second = on_device(x);
  combine<S>(all, tokens, second.data(), nullptr, nullptr, nullptr);
  EXPECT_EQ(on_host(second), got);
}

TEST(Combine, AnswersAndNorm) {
  test_combine<qwen36_35b>(1);
  test_combine<qwen36_35b>(131);
  test_combine<demo>(50);
}

}  // namespace
}  // namespace calla::cuda
