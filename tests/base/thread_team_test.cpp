#include "base/thread_team.h"

#include <atomic>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace calla {
namespace {

TEST(ThreadTeam, EveryMemberRunsOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadTeam team(threads);
    EXPECT_EQ(team.size(), threads);
    std::vector<int> runs(static_cast<std::size_t>(threads));
    for (int i = 0; i < 100; ++i) {
      team.run([&](TeamMember& member) {
        EXPECT_EQ(member.count(), threads);
        ++runs[static_cast<std::size_t>(member.index())];
      });
    }
    EXPECT_EQ(runs, std::vector<int>(static_cast<std::size_t>(threads), 100));
  }
}

TEST(ThreadTeam, NobodyPassesABarrierBeforeAllHaveReachedIt) {
  ThreadTeam team(4);
  std::vector<int> stage(4);
  std::atomic<int> faults = 0;
  team.run([&](TeamMember& member) {
    for (int round = 1; round <= 500; ++round) {
      stage[static_cast<std::size_t>(member.index())] = round;
      member.barrier();
      for (const int s : stage) faults += s != round ? 1 : 0;
      member.barrier();
    }
  });
  EXPECT_EQ(faults, 0);
}

TEST(ThreadTeam, SharesAreContiguousAndEven) {
  for (const int threads : {1, 3, 7}) {
    ThreadTeam team(threads);
    for (const int total : {0, 1, 6, 7, 100}) {
      std::vector<Range> shares(static_cast<std::size_t>(threads));
      team.run([&](TeamMember& member) {
        shares[static_cast<std::size_t>(member.index())] = member.share(total);
      });
      int next = 0;
      for (const Range& share : shares) {
        EXPECT_EQ(share.first, next);
        EXPECT_GE(share.size(), total / threads);
        EXPECT_LE(share.size(), total / threads + 1);
        next = share.last;
      }
      EXPECT_EQ(next, total);
    }
  }
}

TEST(ThreadTeam, UsesAtLeastOneCore) { EXPECT_GE(usable_cores(), 1); }

}  // namespace
}  // namespace calla
