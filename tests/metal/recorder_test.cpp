#include "metal/recorder.h"

#include <gtest/gtest.h>

namespace calla::metal {
namespace {

TEST(RecordingDevice, CountsDispatchesThreadgroupsAndLevels) {
  RecordingDevice device;
  const auto a = device.pipeline("a", 64);
  const auto b = device.pipeline("b", 32);
  const auto pass = device.begin();
  pass->dispatch(*a, {}, {3, 4, 5});
  pass->dispatch(*b, {}, {7});
  pass->barrier();
  pass->dispatch(*b, {}, {});
  EXPECT_TRUE(device.passes().empty()) << "not committed yet";
  pass->commit();
  ASSERT_EQ(device.passes().size(), 1U);
  const RecordedPass& recorded = device.passes().front();
  EXPECT_EQ(recorded.levels, 2);
  ASSERT_EQ(recorded.dispatches.size(), 3U);
  EXPECT_EQ(recorded.dispatches[0].kernel, "a");
  EXPECT_EQ(recorded.dispatches[0].threads, 64U);
  EXPECT_EQ(recorded.dispatches[0].threadgroups(), 60U);
  EXPECT_EQ(recorded.dispatches[1].level, 0);
  EXPECT_EQ(recorded.dispatches[2].level, 1);
  device.forget();
  EXPECT_TRUE(device.passes().empty());
}

TEST(RecordingDevice, MemoryIsThereAndZero) {
  RecordingDevice device;
  const auto buffer = device.allocate(100, Hazards::tracked);
  ASSERT_EQ(buffer->bytes().size(), 100U);
  for (const std::byte b : buffer->bytes()) EXPECT_EQ(b, std::byte{0});
}

}  // namespace
}  // namespace calla::metal
