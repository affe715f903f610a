// Each of the simulator's checkers fires on a kernel or a pass with its fault, says where it is, and is
// silent on what is right.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "metal/simulator/simulated_device.h"
#include "support/support.h"

namespace calla::metal {
namespace {

using simulation::SimulatedDevice;

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

testing::AssertionResult contains(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos)
      return testing::AssertionFailure() << "not \"" << part << "\" in: " << text;
  }
  return testing::AssertionSuccess();
}

/// One line alone, which contains all of the parts.
testing::AssertionResult is_one(const std::vector<std::string>& lines,
                                const std::vector<std::string>& parts) {
  if (lines.size() != 1) return testing::AssertionFailure() << lines.size() << " lines: " << text_of(lines);
  return contains(lines.front(), parts);
}

/// Where a line of broken.metal is, as findings say it.
std::string line_of(std::string_view code) {
  const std::string text = test::read_file(test::source("tests/metal/simulator/broken/broken.metal"));
  const std::size_t at = text.find(code);
  if (at == std::string::npos) return "no such line";
  return "broken.metal:" +
         std::to_string(1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

class Checkers : public testing::Test {
 protected:
  static constexpr std::size_t count = 64;

  std::unique_ptr<Buffer> values(float value) const {
    auto buffer = device_->allocate(count * sizeof(float), Hazards::tracked);
    for (float& element : buffer->as<float>()) element = value;
    return buffer;
  }
  std::unique_ptr<Buffer> unwritten() const {
    return device_->allocate(count * sizeof(float), Hazards::tracked);
  }

  /// What is found when one dispatch runs alone.
  const std::vector<std::string>& run(std::string_view kernel, std::uint32_t threads,
                                      std::initializer_list<Argument> arguments, Grid grid = {}) {
    const auto pipeline = device_->pipeline(kernel, threads);
    const auto pass = device_->begin();
    pass->dispatch(*pipeline, arguments, grid);
    pass->commit();
    pass->wait();
    return device_->findings();
  }

  /// Copies between buffers, with or without barriers between the dispatches.
  struct Copy {
    const Buffer* from;
    const Buffer* to;
  };
  const std::vector<std::string>& run(const std::vector<Copy>& copies, bool barriers) {
    const auto copy = device_->pipeline("right_copy", count);
    const auto pass = device_->begin();
    for (const auto& [from, to] : copies) {
      if (barriers && from != copies.front().from) pass->barrier();
      pass->dispatch(*copy, {View(*from), View(*to)}, Grid{1});
    }
    pass->commit();
    pass->wait();
    return device_->findings();
  }

  std::unique_ptr<SimulatedDevice> device_ = simulation::make_device({.seed = 3});
};

TEST_F(Checkers, ReadBehindABuffer) {
  EXPECT_TRUE(is_one(run("broken_bounds", 64, {View(values(1)), View(unwritten())}),
                     {"broken_bounds, threadgroup (0, 0, 0), thread 63 at", line_of("x[i] + x[i + 1]"),
                      "reads 4 bytes outside all buffers, 0 bytes behind the end of argument 0 (x)"}));
}

TEST_F(Checkers, ReadBeforeAView) {
  const auto x = values(1);
  const auto y = unwritten();
  EXPECT_TRUE(is_one(run("broken_before", 32, {View(x, 16), View(y)}),
                     {"reads 4 bytes before the place in the buffer that is argument 0 (x)"}));
}

TEST_F(Checkers, ReadBehindAnArray) {
  EXPECT_TRUE(is_one(run("broken_array_bounds", 32, {View(unwritten())}),
                     {"thread 31 at", line_of("y[i] = values[i + 1]"),
                      "reads 4 bytes of threadgroup memory outside all arrays"}));
}

TEST_F(Checkers, IndexBehindALocalArray) {
  const auto x = unwritten();
  for (std::uint32_t& index : x->as<std::uint32_t>()) index = 4;
  EXPECT_TRUE(is_one(run("broken_local_bounds", 32, {View(x), View(unwritten())}),
                     {"uses element 4 of an array that is shorter"}));
}

TEST_F(Checkers, WriteThroughConst) {
  EXPECT_TRUE(
      is_one(run("broken_const", 32, {View(values(1))}), {"writes argument 0 (x), which it may only read"}));
}

TEST_F(Checkers, Alignment) {
  EXPECT_TRUE(is_one(run("broken_alignment", 32, {View(values(1)), View(unwritten())}),
                     {"reads 16 bytes of argument 0 (x) at a place that is not a multiple of them"}));
  const auto x = values(1);
  EXPECT_TRUE(contains(test::message_of([&] {
                         run("broken_alignment", 32, {View(x), View(values(1), 8)});
                       }),
                       {"the offset 8 is not aligned to 16 bytes"}));
}

TEST_F(Checkers, ReadOfABufferThatNothingWrote) {
  EXPECT_TRUE(is_one(run("right_copy", 32, {View(unwritten()), View(unwritten())}),
                     {"reads what nothing wrote", "the buffer of argument 0 (x)"}));
}

TEST_F(Checkers, ReadOfThreadgroupMemoryThatNothingWrote) {
  EXPECT_EQ(text_of(run("right_unwritten", 32, {View(unwritten())})), "");
  EXPECT_TRUE(is_one(
      run("broken_unwritten", 32, {View(unwritten())}),
      {"thread 0 at", line_of("y[i] = values[31 - i]"), "reads threadgroup memory that nothing wrote"}));
}

TEST_F(Checkers, RaceInThreadgroupMemory) {
  EXPECT_EQ(text_of(run("right_exchange", 64, {View(unwritten())})), "");
  EXPECT_EQ(text_of(run("right_exchange_lanes", 64, {View(unwritten())})), "");
  EXPECT_EQ(text_of(run("right_overwrite", 64, {View(unwritten())})), "");
  for (const char* kernel : {"broken_exchange_device", "broken_exchange_simdgroup",
                             "broken_exchange_function", "broken_overwrite"}) {
    device_ = simulation::make_device({});
    EXPECT_TRUE(
        contains(text_of(run(kernel, 64, {View(unwritten())})), {"no barrier for this memory lies between"}))
        << kernel;
  }
  // Here some threads read before others write.
  for (const char* kernel : {"broken_exchange", "broken_exchange_lanes"}) {
    device_ = simulation::make_device({});
    const std::string found = text_of(run(kernel, 64, {View(unwritten())}));
    EXPECT_TRUE(contains(found, {"no barrier for this memory lies between", "nothing wrote"})) << kernel;
  }
}

TEST_F(Checkers, NoRaceOfHalvesOfAWord) {
  EXPECT_EQ(text_of(run("right_halves", 32, {View(unwritten())})), "");
}

TEST_F(Checkers, RaceOfThreadgroups) {
  const auto counter = unwritten();
  counter->as<std::uint32_t>()[0] = 0;
  EXPECT_EQ(text_of(run("right_groups", 32, {View(counter)}, Grid{5})), "");
  EXPECT_EQ(counter->as<std::uint32_t>()[0], 5U);
  EXPECT_TRUE(is_one(run("broken_groups", 32, {View(unwritten())}, Grid{2}),
                     {"writes a word of argument 0 (y) that thread 0 of another threadgroup writes: "
                      "threadgroups are not ordered"}));
}

TEST_F(Checkers, Divergence) {
  EXPECT_TRUE(is_one(run("broken_barrier", 64, {View(unwritten())}),
                     {"SIMD-groups have ended while others are at a threadgroup_barrier at",
                      line_of("if (simd == 0) threadgroup_barrier")}));
  EXPECT_TRUE(contains(text_of(run("broken_function", 32, {View(unwritten())})),
                       {"threads of a SIMD-group diverge: some are at a SIMD function at",
                        line_of("y[i] = simd_sum(1.0f);\n  } else"), line_of("y[i] = simd_max")}));
  EXPECT_TRUE(contains(text_of(run("broken_return", 32, {View(unwritten())})),
                       {"threads of a SIMD-group have ended while others are at a SIMD function"}));
}

TEST_F(Checkers, LaneThatDoesNotExist) {
  EXPECT_TRUE(is_one(run("broken_lane", 32, {View(unwritten())}),
                     {"a value is read from a lane that does not exist (32 at"}));
}

TEST_F(Checkers, ThreadgroupMemory) {
  EXPECT_EQ(text_of(run("right_memory", 32, {View(unwritten())})), "");
  EXPECT_TRUE(is_one(run("broken_memory", 32, {View(unwritten())}),
                     {"more than 32768 bytes of threadgroup memory: 32784"}));
}

TEST_F(Checkers, Arithmetic) {
  const auto x = unwritten();
  for (std::uint32_t& bits : x->as<std::uint32_t>()) bits = 32;
  EXPECT_TRUE(is_one(run("broken_shift", 32, {View(x), View(unwritten())}), {"shifts by 32 bits"}));
  EXPECT_TRUE(contains(text_of(run("broken_cast", 32, {View(values(-1)), View(unwritten())})),
                       {"converts a float to an integer that cannot hold it"}));
}

TEST_F(Checkers, DispatchesWithoutABarrier) {
  const auto a = values(1);
  const auto b = values(2);
  const auto c = values(3);
  EXPECT_EQ(text_of(run({{a.get(), b.get()}, {b.get(), c.get()}}, true)), "");
  EXPECT_EQ(text_of(device_->needless_barriers()), "");
  EXPECT_EQ(text_of(run({{a.get(), b.get()}, {a.get(), c.get()}}, false)), "");  // both read one
  EXPECT_TRUE(is_one(run({{a.get(), b.get()}, {b.get(), c.get()}}, false),
                     {"no barrier lies between the two dispatches"}));
}

TEST_F(Checkers, NeedlessBarrier) {
  const auto a = values(1);
  const auto b = values(2);
  const auto c = values(3);
  const auto d = values(4);
  EXPECT_EQ(text_of(run({{a.get(), b.get()}, {c.get(), d.get()}}, true)), "");
  EXPECT_EQ(text_of(device_->needless_barriers()), "barrier 1 of a pass, before right_copy\n");
  // To write what others read before depends on them, too.
  EXPECT_EQ(text_of(run({{a.get(), b.get()}, {c.get(), a.get()}}, true)), "");
  EXPECT_EQ(device_->needless_barriers().size(), 1U);
}

TEST_F(Checkers, PassesAreOrderedByWhatTheyTouch) {
  const auto a = values(1);
  const auto b = values(2);
  const auto copy = device_->pipeline("right_copy", count);
  std::vector<std::unique_ptr<Pass>> passes;
  for (int i = 0; i < 3; ++i) {
    passes.push_back(device_->begin());
    passes.back()->dispatch(*copy, {View(i % 2 == 0 ? a : b), View(i % 2 == 0 ? b : a)}, Grid{1});
    passes.back()->commit();
  }
  for (const auto& pass : passes) pass->wait();
  EXPECT_EQ(text_of(device_->findings()), "");
}

TEST_F(Checkers, WhatABindingMayBe) {
  const auto x = values(1);
  const auto y = unwritten();
  const auto untracked = device_->allocate(256, Hazards::untracked);
  const auto message = [&](std::initializer_list<Argument> arguments) {
    return test::message_of([&] { run("right_copy", 32, arguments); });
  };
  EXPECT_TRUE(contains(message({View(x), View(untracked)}), {"written, but its buffer is untracked"}));
  EXPECT_TRUE(contains(message({View(x)}), {"argument 1 (y) is missing"}));
  EXPECT_TRUE(contains(message({View(x), View(y), View(y)}), {"3 arguments where the kernel has 2"}));
  EXPECT_TRUE(contains(message({View(x), constants(1.0F)}), {"takes a buffer, not constants"}));
  EXPECT_TRUE(contains(message({View(x), View()}), {"no buffer"}));
  struct Large {
    std::byte bytes[4100];
  };
  EXPECT_TRUE(contains(test::message_of([&] {
                         run("example_scale", 32, {View(x), View(y), constants(Large{})});
                       }),
                       {"more than 4096 bytes of constants"}));
  EXPECT_TRUE(contains(test::message_of([&] {
                         run("example_scale", 32, {View(x), View(y), constants(1.0F)});
                       }),
                       {"4 bytes of constants where the kernel has 8"}));
  EXPECT_TRUE(
      contains(test::message_of([&] { device_->pipeline("right_copy", 48); }), {"whole SIMD-groups"}));
  EXPECT_TRUE(
      contains(test::message_of([&] { device_->pipeline("right_copy", 1056); }), {"1024 threads at most"}));
  EXPECT_TRUE(
      contains(test::message_of([&] { device_->pipeline("no_such", 32); }), {"there is no such kernel"}));
  const std::vector<Argument> many(32, View(x));
  const auto copy = device_->pipeline("right_copy", 32);
  EXPECT_TRUE(contains(test::message_of([&] { device_->begin()->dispatch(*copy, many, Grid{1}); }),
                       {"more than 31 arguments"}));
}

TEST_F(Checkers, MemoryThatWasThereBefore) {
  const auto pages = device_->allocate(2 * device_->map_alignment(), Hazards::tracked);
  for (float& element : pages->as<float>()) element = 5;
  alignas(16384) static std::array<std::byte, 16384> page{};
  const auto mapped = device_->map(page);
  EXPECT_EQ(text_of(run("right_copy", 64, {View(mapped), View(pages)})), "");
  EXPECT_EQ(pages->as<float>()[63], 0.0F);
  EXPECT_TRUE(is_one(run("broken_const", 32, {View(mapped)}), {"writes 4 bytes that are in no buffer"}));
}

TEST_F(Checkers, TensorOperations) {
  const auto halves = [&](std::size_t elements) {
    auto buffer = device_->allocate(elements * sizeof(std::uint16_t), Hazards::tracked);
    for (std::uint16_t& element : buffer->as<std::uint16_t>()) element = 0x3c00;  // 1
    return buffer;
  };
  const auto left = halves(256);
  const auto right = halves(256);
  const auto y = device_->allocate(256 * sizeof(float), Hazards::tracked);
  EXPECT_EQ(text_of(run("right_tensor", 64, {View(left), View(right), View(y)})), "");
  for (const float value : y->as<float>()) EXPECT_EQ(value, 16.0F);
  // Rows that a tensor does not have are neither read nor written.
  const auto few = halves(9 * 16);
  const auto result = device_->allocate(9 * 16 * sizeof(float), Hazards::tracked);
  EXPECT_EQ(text_of(run("right_tensor_clipped", 64, {View(few), View(right), View(result)})), "");
  for (const float value : result->as<float>()) EXPECT_EQ(value, 16.0F);
  // A destination begins with no number.
  run("broken_tensor_destination", 64, {View(left), View(right), View(y)});
  for (const float value : y->as<float>()) EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(contains(text_of(run("broken_tensor_groups", 64, {View(left), View(right), View(y)})),
                       {"an operation of other SIMD-groups than there are (2 at"}));
}

}  // namespace
}  // namespace calla::metal
