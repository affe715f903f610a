// Loose arithmetic is within what Metal's specification states, and not the same as exact arithmetic.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "metal/simulator/simulated_device.h"

namespace calla::metal {
namespace {

using simulation::make_device;

constexpr std::size_t count = 256;  // of arguments
constexpr std::size_t functions = 9;

std::vector<float> arguments() {
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = std::exp2(static_cast<float>(i) / 16.0F - 12);
  return x;
}

/// What a kernel makes of the arguments, `each` results of one.
std::vector<float> results(std::string_view kernel, const std::vector<float>& x, std::size_t each,
                           std::optional<std::uint64_t> loose) {
  const auto device = make_device({.checked = false, .loose = loose});
  const auto in = device->allocate(x.size() * sizeof(float), Hazards::tracked);
  const auto out = device->allocate(x.size() * each * sizeof(float), Hazards::tracked);
  std::copy(x.begin(), x.end(), in->as<float>().begin());
  const auto pass = device->begin();
  pass->dispatch(*device->pipeline(kernel, 32), {View(in), View(out)},
                 Grid{static_cast<std::uint32_t>(x.size() / 32)});
  pass->commit();
  pass->wait();
  const auto y = out->as<float>();
  return {y.begin(), y.end()};
}

/// The distance of the floats around a number.
double unit(double y) { return std::ldexp(1.0, std::ilogb(y) - 23); }

struct Function {
  std::string_view name;
  double (*exact)(double x);
  double (*bound)(double x, double y);
  bool rounded = false;  // correctly
};

constexpr std::array<Function, functions> table = {{
    {"precise::exp", [](double x) { return std::exp(x); }, [](double, double y) { return 4 * unit(y); }},
    {"precise::log", [](double x) { return std::log(x); }, [](double, double y) { return 4 * unit(y); }},
    {"precise::rsqrt", [](double x) { return 1 / std::sqrt(x); },
     [](double, double y) { return 0.5 * unit(y); }, true},
    {"fast::exp2", [](double x) { return std::exp2(x); },
     [](double x, double y) { return (3 + std::floor(2 * x)) * unit(y); }},
    {"fast::exp2 of what is negative", [](double x) { return std::exp2(-x); },
     [](double x, double y) { return (3 + std::floor(2 * x)) * unit(y); }},
    {"fast::log", [](double x) { return std::log(x); },
     [](double x, double y) { return x >= 0.5 && x <= 2 ? std::exp2(-21) : 3 * unit(y); }},
    {"fast::rsqrt", [](double x) { return 1 / std::sqrt(x); }, [](double, double y) { return 2 * unit(y); }},
    {"fast::divide", [](double x) { return x / 3; }, [](double, double y) { return 2.5 * unit(y); }},
    {"fast::cos", [](double x) { return std::cos(x); }, [](double, double) { return std::exp2(-13); }},
}};

TEST(LooseArithmetic, IsOffByNoMoreThanMetalStates) {
  const std::vector<float> x = arguments();
  const std::vector<float> y = results("example_functions", x, functions, 1);
  for (std::size_t k = 0; k < functions; ++k) {
    SCOPED_TRACE(table.at(k).name);
    double most = 0;  // of what the bound allows
    for (std::size_t i = 0; i < count; ++i) {
      const double exact = table.at(k).exact(x[i]);
      if (std::abs(exact) < std::numeric_limits<float>::min()) continue;
      const double bound = exact == 0 ? std::numeric_limits<float>::min() : table.at(k).bound(x[i], exact);
      const double error = std::abs(y[functions * i + k] - exact);
      EXPECT_LE(error, bound) << x[i];
      most = std::max(most, error / bound);
    }
    EXPECT_GT(most, 0.5);
  }
}

TEST(LooseArithmetic, GivesTheSameForTheSameArgumentAndSeed) {
  const std::vector<float> x = arguments();
  const std::vector<float> once = results("example_functions", x, functions, 1);
  EXPECT_EQ(results("example_functions", x, functions, 1), once);
  const std::vector<float> other = results("example_functions", x, functions, 2);
  const std::vector<float> exact = results("example_functions", x, functions, {});
  for (std::size_t k = 0; k < functions; ++k) {
    SCOPED_TRACE(table.at(k).name);
    std::size_t differ = 0;
    std::size_t differ_from_exact = 0;
    for (std::size_t at = k; at < once.size(); at += functions) {
      differ += once[at] != other[at] ? 1 : 0;
      differ_from_exact += once[at] != exact[at] ? 1 : 0;
    }
    if (table.at(k).rounded) {
      EXPECT_EQ(differ, 0U);
    } else {
      EXPECT_GT(differ, count / 3);
      EXPECT_GT(differ_from_exact, count / 3);
    }
  }
}

/// Whether this machine has the instruction, and so contracts.
bool has_fused_multiply_add() {
#ifdef __x86_64__
  return __builtin_cpu_supports("fma") != 0;
#else
  return true;
#endif
}

TEST(LooseArithmetic, ContractsProductsAndSums) {
  std::vector<float> x(32);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1 + std::exp2(-23.0F) * static_cast<float>(3 * i + 1);
  const std::vector<float> exact = results("example_product", x, 1, {});
  const std::vector<float> loose = results("example_product", x, 1, 1);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const volatile float square = x[i] * x[i];
    EXPECT_EQ(exact[i], square - 1.0F);
    EXPECT_EQ(loose[i], has_fused_multiply_add() ? std::fma(x[i], x[i], -1.0F) : exact[i]);
  }
  EXPECT_EQ(loose == exact, !has_fused_multiply_add());
}

/// Half of the smallest normal number, as this thread computes it.
float half_of_the_smallest() {
  volatile float smallest = std::numeric_limits<float>::min();
  return smallest / 2;
}

struct ScaleArguments {
  std::uint32_t count;
  float factor;
};

TEST(LooseArithmetic, FlushesSubnormalNumbersAndLeavesTheThreadAsItWas) {
  constexpr float smallest = std::numeric_limits<float>::min();
  const auto scaled = [](float x, float factor, std::optional<std::uint64_t> loose) {
    const auto device = make_device({.checked = false, .loose = loose});
    const auto in = device->allocate(sizeof(float), Hazards::tracked);
    const auto out = device->allocate(sizeof(float), Hazards::tracked);
    in->as<float>()[0] = x;
    const auto pass = device->begin();
    pass->dispatch(*device->pipeline("example_scale", 32),
                   {View(in), View(out), constants(ScaleArguments{1, factor})}, Grid{1});
    pass->commit();
    pass->wait();
    return out->as<float>()[0];
  };
  EXPECT_EQ(scaled(smallest, 0.5F, {}), smallest / 2);
  EXPECT_EQ(scaled(smallest, 0.5F, 1), 0) << "a result";
  EXPECT_GT(half_of_the_smallest(), 0);
  EXPECT_EQ(scaled(smallest / 2, 4, {}), 2 * smallest);
  EXPECT_EQ(scaled(smallest / 2, 4, 1), 0) << "an operand";
  EXPECT_GT(half_of_the_smallest(), 0);
  EXPECT_EQ(scaled(smallest, 2, 1), 2 * smallest);
}

TEST(LooseArithmetic, LeavesTheThreadAsItWasWhenAKernelIsGivenUp) {
  const auto device = make_device({.checked = false, .loose = 1});
  const auto out = device->allocate(32 * sizeof(float), Hazards::tracked);
  const auto pass = device->begin();
  pass->dispatch(*device->pipeline("broken_return", 32), {View(out)}, Grid{1});
  pass->commit();
  pass->wait();
  EXPECT_EQ(device->findings().size(), 1U);
  EXPECT_GT(half_of_the_smallest(), 0);
}

TEST(LooseArithmetic, IsNotWatched) { EXPECT_THROW(make_device({.checked = true, .loose = 1}), Error); }

}  // namespace
}  // namespace calla::metal
