#include "model/memory_plan.h"

#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "base/error.h"

namespace calla {
namespace {

TEST(MemoryPlan, BytesAreWrittenWithThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(19'510'000'000), "19.5 GB");
  EXPECT_EQ(format_bytes(999'600), "1.00 MB");
  EXPECT_EQ(format_bytes(123'456'789), "123 MB");
}

TEST(MemoryPlan, WhatDoesNotFitIsRefusedWithItsNumbers) {
  const MemoryPlan plan{
      .slots = 2, .context = 4096, .weights = 3'000'000'000, .kv_cache = 1'000'000'000, .states = 5'000'000};
  EXPECT_NO_THROW(require_fit(plan, plan.total()));
  try {
    require_fit(plan, plan.total() - 1);
    FAIL() << "a plan that exceeds the memory was accepted";
  } catch (const Error& fault) {
    const std::string message = fault.what();
    for (const char* part :
         {"4.00 GB", "3.00 GB weights", "1.00 GB KV cache", "2 x 4096 tokens", "--context"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    }
  }
}

TEST(MemoryPlan, SnapshotsTakeAPartOfWhatIsLeft) {
  constexpr std::uint64_t gib = std::uint64_t{1} << 30U;
  const auto plan = [&](std::optional<std::uint64_t> asked, std::uint64_t left,
                        std::optional<std::uint64_t> host) {
    const SnapshotMemory memory = plan_snapshots(asked, left, host);
    return std::pair(memory.device, memory.host);
  };
  // Nobody asks.
  EXPECT_EQ(plan({}, 4 * gib, {}), std::pair(gib, std::uint64_t{0}));
  EXPECT_EQ(plan({}, 4 * gib, 12 * gib), std::pair(gib, 3 * gib));
  EXPECT_EQ(plan({}, 400 * gib, 400 * gib), std::pair(8 * gib, 8 * gib)) << "no more than is of use";
  EXPECT_EQ(plan({}, 0, 4 * gib), std::pair(std::uint64_t{0}, gib));
  // Somebody does.
  EXPECT_EQ(plan(0, 4 * gib, 12 * gib), std::pair(std::uint64_t{0}, std::uint64_t{0}));
  EXPECT_EQ(plan(9 * gib, 4 * gib, {}), std::pair(9 * gib, std::uint64_t{0})) << "where nothing can move";
  EXPECT_EQ(plan(2 * gib, 4 * gib, 12 * gib), std::pair(2 * gib, std::uint64_t{0}));
  EXPECT_EQ(plan(9 * gib, 4 * gib, 12 * gib), std::pair(3 * gib, 6 * gib));
  EXPECT_EQ(plan(99 * gib, 4 * gib, 12 * gib), std::pair(3 * gib, 9 * gib)) << "what there is";
}

TEST(MemoryPlan, TheMachineSaysWhatIsAvailable) {
  const auto available = available_memory();
  ASSERT_TRUE(available.has_value());
  EXPECT_GT(*available, 10'000'000U);
}

}  // namespace
}  // namespace calla
