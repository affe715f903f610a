// What the tests of the mixers share.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "metal/device.h"
#include "metal/test_device.h"

namespace calla::metal {

inline std::vector<float> normal_values(std::size_t count, float mean, float deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(mean, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

class Gpu {
 public:
  explicit Gpu(const Shape& shape, bool checked = true)
      : device_(make_test_device({.shape = shape, .checked = checked})) {}

  /// A buffer that nothing has written.
  template <class T>
  std::unique_ptr<Buffer> room(std::size_t count) {
    return device_->allocate(count * sizeof(T), Hazards::tracked);
  }
  template <class T>
  std::unique_ptr<Buffer> upload(const std::vector<T>& values) {
    std::unique_ptr<Buffer> buffer = room<T>(values.size());
    std::memcpy(buffer->bytes().data(), values.data(), values.size() * sizeof(T));
    return buffer;
  }

  struct Launch {
    std::string_view kernel;
    std::uint32_t threads;
    std::vector<Argument> arguments;
    Grid grid;
  };
  /// Runs a pass to its end, the launches of a level in any order. The checkers must have found nothing.
  void run(const std::vector<std::vector<Launch>>& levels) {
    std::vector<std::unique_ptr<Pipeline>> pipelines;
    const std::unique_ptr<Pass> pass = device_->begin();
    for (const std::vector<Launch>& level : levels) {
      if (!pipelines.empty()) pass->barrier();
      for (const Launch& launch : level) {
        pipelines.push_back(device_->pipeline(launch.kernel, launch.threads));
        pass->dispatch(*pipelines.back(), launch.arguments, launch.grid);
      }
    }
    pass->commit();
    pass->wait();
    for (const std::string& finding : device_->findings()) ADD_FAILURE() << finding;
  }
  void run(std::string_view kernel, std::uint32_t threads, std::initializer_list<Argument> arguments,
           Grid grid) {
    run({{{kernel, threads, arguments, grid}}});
  }

 private:
  std::unique_ptr<TestDevice> device_;
};

template <class T>
std::vector<T> values_of(const std::unique_ptr<Buffer>& buffer) {
  const std::span<T> values = buffer->as<T>();
  return {values.begin(), values.end()};
}

/// The size of an error, infinite for a NaN, which std::max would pass over.
inline double known(double error) { return std::isfinite(error) ? std::abs(error) : INFINITY; }

/// Whether two arrays have the same bits.
template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace calla::metal
