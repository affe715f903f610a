#include "model/philox.h"

#include <gtest/gtest.h>

namespace calla {
namespace {

using Counter = std::array<std::uint32_t, 4>;

// The known answers that its authors publish with the generator (Random123, kat_vectors, philox4x32 with 10
// rounds).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformNumbersFillTheUnitInterval) {
  constexpr int count = 100000;
  double sum = 0;
  double squares = 0;
  for (int n = 0; n < count; ++n) {
    const double u = uniform(7, static_cast<std::uint64_t>(n));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  // The mean's standard error is 0.29 / sqrt(100000) = 0.0009; five of them.
  EXPECT_NEAR(sum / count, 1.0 / 2, 0.005);
  EXPECT_NEAR(squares / count, 1.0 / 3, 0.005);
}

}  // namespace
}  // namespace calla
