#include "metal/decode_plan.h"

#include <cmath>

#include <gtest/gtest.h>

#include "model/cost.h"

namespace calla::metal {
namespace {

TEST(DecodePlan, ATokenTakesFewDispatchesAndLevels) {
  const DecodePlan at_once = plan_decode(qwen36_35b, 256);
  EXPECT_LE(at_once.dispatches, 330);
  EXPECT_LE(at_once.levels, 250);
  const DecodePlan split = plan_decode(qwen36_35b, 4096);
  EXPECT_LE(split.dispatches, 330);
  EXPECT_LE(split.levels, 260);
  EXPECT_EQ(split.dispatches, at_once.dispatches + qwen36_35b.attention_layers())
      << "one kernel joins the splits";
}

TEST(DecodePlan, CountsTheBytesThatATokenNeeds) {
  for (const int context : {256, 32768}) {
    const DecodePlan plan = plan_decode(qwen36_35b, context);
    const double least = decode_bytes(qwen36_35b, 1, context).total();
    EXPECT_LT(std::abs(plan.bytes / least - 1), 0.01) << context;
  }
}

TEST(DecodePlan, KernelsAddUp) {
  const DecodePlan plan = plan_decode(demo, 300);
  int dispatches = 0;
  double bytes = 0;
  std::uint64_t threadgroups = 0;
  for (const KernelPlan& kernel : plan.kernels) {
    dispatches += kernel.dispatches;
    bytes += kernel.bytes;
    threadgroups += kernel.threadgroups;
  }
  EXPECT_EQ(dispatches, plan.dispatches);
  EXPECT_EQ(threadgroups, plan.threadgroups);
  EXPECT_DOUBLE_EQ(bytes, plan.bytes);
  EXPECT_LE(plan.streaming_levels, plan.levels);
}

TEST(DecodePlan, AFasterChipIsFaster) {
  const DecodePlan plan = plan_decode(qwen36_35b, 4096);
  double slowest = 0;
  double fastest = 1;
  for (const Chip& chip : chips()) {
    slowest = std::max(slowest, predicted_seconds(plan, chip));
    fastest = std::min(fastest, predicted_seconds(plan, chip));
  }
  EXPECT_GT(slowest, plan.bytes / 60e9);
  EXPECT_GT(fastest, plan.levels * 2e-6) << "levels cost time whatever the bandwidth";
}

}  // namespace
}  // namespace calla::metal
