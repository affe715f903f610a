#include "model/memory_plan.h"

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

TEST(MemoryPlan, TheMachineSaysWhatIsAvailable) {
  const auto available = available_memory();
  ASSERT_TRUE(available.has_value());
  EXPECT_GT(*available, 10'000'000U);
}

}  // namespace
}  // namespace calla
