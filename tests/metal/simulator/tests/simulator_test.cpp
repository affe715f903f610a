#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "metal/simulator/simulated_device.h"

namespace calla::metal {
namespace {

using simulation::make_device;

struct ScaleArguments {
  std::uint32_t count;
  float factor;
};

TEST(Simulator, RunsAKernel) {
  const auto device = make_device({.checked = false});
  const auto x = device->allocate(100 * sizeof(float), Hazards::tracked);
  const auto y = device->allocate(100 * sizeof(float), Hazards::tracked);
  std::iota(x->as<float>().begin(), x->as<float>().end(), 0.0F);
  const auto scale = device->pipeline("example_scale", 64);
  const auto pass = device->begin();
  pass->dispatch(*scale, {View(x), View(y), constants(ScaleArguments{100, 3.0F})}, Grid{2});
  pass->barrier();
  pass->dispatch(*scale, {View(y), View(x), constants(ScaleArguments{50, 2.0F})}, Grid{1});
  pass->commit();
  pass->wait();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(y->as<float>()[i], static_cast<float>(3 * i));
    EXPECT_EQ(x->as<float>()[i], static_cast<float>(i < 50 ? 6 * i : i));
  }
  EXPECT_TRUE(device->findings().empty()) << device->findings().front();
}

TEST(Simulator, SumsOverSimdGroupsAndThreadgroups) {
  for (const bool checked : {false, true}) {
    const auto device = make_device({.checked = checked});
    const auto x = device->allocate(2048 * sizeof(float), Hazards::tracked);
    const auto sums = device->allocate(2 * sizeof(float), Hazards::tracked);
    std::iota(x->as<float>().begin(), x->as<float>().end(), 0.0F);
    const auto pass = device->begin();
    pass->dispatch(*device->pipeline("example_sum_1024", 1024), {View(x), View(sums)}, Grid{2});
    pass->commit();
    pass->wait();
    EXPECT_EQ(sums->as<float>()[0], 1023.0F * 512);
    EXPECT_EQ(sums->as<float>()[1], 1023.0F * 512 + 1024 * 1024);
    EXPECT_TRUE(device->findings().empty()) << device->findings().front();
  }
}

TEST(Simulator, MultipliesMatricesAndKnowsSwizzles) {
  const auto device = make_device({.checked = false});
  const auto a = device->allocate(64 * sizeof(float), Hazards::tracked);
  const auto b = device->allocate(64 * sizeof(float), Hazards::tracked);
  const auto d = device->allocate(64 * sizeof(float), Hazards::tracked);
  const auto swizzled = device->allocate(16 * sizeof(float), Hazards::tracked);
  for (std::size_t i = 0; i < 64; ++i) {
    a->as<float>()[i] = static_cast<float>(i % 7);
    b->as<float>()[i] = static_cast<float>(i % 5);
  }
  const auto pass = device->begin();
  pass->dispatch(*device->pipeline("example_matrix", 32), {View(a), View(b), View(d), View(swizzled)},
                 Grid{1});
  pass->commit();
  pass->wait();
  for (std::size_t row = 0; row < 8; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      float sum = 0;
      for (std::size_t k = 0; k < 8; ++k) sum += a->as<float>()[row * 8 + k] * b->as<float>()[column * 8 + k];
      EXPECT_EQ(d->as<float>()[row * 8 + column], sum);
    }
  }
  const std::array expected = {7.0F, 9.0F, 3.0F, 4.0F, 2.0F,  1.0F,  4.0F,  3.0F,
                               0.0F, 0.0F, 3.0F, 4.0F, 56.0F, 90.0F, 12.0F, 20.0F};
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(swizzled->as<float>()[i], expected[i]) << i;
}

/// The order in which the threads of two threadgroups came.
std::vector<std::uint32_t> order(std::uint64_t seed) {
  const auto device = make_device({.checked = false, .seed = seed});
  const auto count = device->allocate(sizeof(std::uint32_t), Hazards::tracked);
  const auto numbers = device->allocate(128 * sizeof(std::uint32_t), Hazards::tracked);
  count->as<std::uint32_t>()[0] = 0;
  const auto pass = device->begin();
  pass->dispatch(*device->pipeline("example_order", 64), {View(count), View(numbers)}, Grid{2});
  pass->commit();
  pass->wait();
  const auto values = numbers->as<std::uint32_t>();
  return {values.begin(), values.end()};
}

TEST(Simulator, TheSeedIsTheOrderOfThreads) {
  std::vector<std::uint32_t> once = order(1);
  EXPECT_EQ(once, order(1));
  EXPECT_NE(once, order(2));
  EXPECT_FALSE(std::ranges::is_sorted(once));
  std::ranges::sort(once);
  for (std::uint32_t i = 0; i < once.size(); ++i) EXPECT_EQ(once[i], i);
}

}  // namespace
}  // namespace calla::metal
