#include "reference/backend.h"

#include <gtest/gtest.h>

#include "support/backend_contract.h"

namespace calla {
namespace test {
INSTANTIATE_TEST_SUITE_P(Reference, BackendContract, testing::Values(BackendMaker(reference::make_backend)),
                         [](const auto& /*made*/) { return "Reference"; });
}  // namespace test

namespace reference {
namespace {

TEST(ReferenceBackend, ThePlanCountsWhatASequenceHolds) {
  const MemoryPlan small = plan(demo, 1000, 1, 100);
  EXPECT_EQ(small.weights, 1000U);
  EXPECT_EQ(small.kv_cache, 100U * 2 * 2 * 256 * 4);
  EXPECT_EQ(small.states, 6U * (8 * 128 * 128 + 3 * 2048) * 4);
  // The figures of the 35B that everyone quotes: 62.8 MiB of recurrent state.
  EXPECT_NEAR(static_cast<double>(plan(qwen36_35b, 0, 1, 1).states) / (1 << 20), 62.8, 0.05);
}

}  // namespace
}  // namespace reference
}  // namespace calla
