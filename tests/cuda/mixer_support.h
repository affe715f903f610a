// What the tests of the prefill mixers share.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/arrays.h"

namespace calla::cuda {

inline std::vector<float> normal_values(std::size_t count, float mean, float deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(mean, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

inline std::vector<__half> as_halves(std::span<const float> values) {
  std::vector<__half> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), [](float x) { return __float2half_rn(x); });
  return halves;
}

/// |got - expected| / |expected|, Euclidean; a NaN in `got` is infinitely wrong.
class RelativeError {
 public:
  void add(double got, double expected) {
    if (!std::isfinite(got)) finite_ = false;
    difference_ += (got - expected) * (got - expected);
    size_ += expected * expected;
  }
  void add(const RelativeError& other) {
    difference_ += other.difference_;
    size_ += other.size_;
    finite_ = finite_ && other.finite_;
  }
  double value() const { return finite_ ? std::sqrt(difference_ / size_) : INFINITY; }

 private:
  double difference_ = 0;
  double size_ = 0;
  bool finite_ = true;
};

/// Calls work(i) for i in 0 .. count - 1, each on a thread of its own.
template <class Work>
void in_parallel(int count, Work work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace calla::cuda
