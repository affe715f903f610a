#include "cpu/machine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include <unistd.h>

#include "base/thread_team.h"
#include "cpu/kernels.h"
#include "cpu/memory.h"
#include "model/memory_plan.h"

namespace calla::cpu {
namespace {

constexpr int passes = 5;

/// The shortest of several runs of the whole team.
template <class Work>
double best_seconds(ThreadTeam& team, Work work) {
  double best = 1e9;
  for (int pass = 0; pass < passes; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    team.run(work);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

/// Enough that no pass finds much of the one before it in the cache, and no more than a quarter of the
/// memory.
std::size_t far_more_than_the_cache() {
  constexpr std::size_t least = std::size_t{512} << 20U;
#ifdef _SC_LEVEL3_CACHE_SIZE
  const long cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
#else
  const long cache = 0;
#endif
  constexpr std::size_t times = 8;
  const std::size_t wanted = std::max(least, times * static_cast<std::size_t>(std::max(cache, 0L)));
  const std::size_t most = available_memory().value_or(4 * least) / 4;
  constexpr std::size_t large_page = std::size_t{2} << 20U;
  return std::max(std::min(wanted, most) / large_page, std::size_t{1}) * large_page;
}

}  // namespace

double read_bandwidth(int threads) {
  const std::size_t bytes = far_more_than_the_cache();
  constexpr int line = 64;
  const int pairs = static_cast<int>(bytes / line / 2);
  const Region region(bytes);
  ThreadTeam team(threads);
  const auto part = [&](const TeamMember& member) {
    const Range mine = member.share(pairs);
    return std::span(region.data() + std::size_t{2 * line} * static_cast<std::size_t>(mine.first),
                     std::size_t{2 * line} * static_cast<std::size_t>(mine.size()));
  };
  team.run([&](TeamMember& member) { std::memset(part(member).data(), 1, part(member).size()); });
  const KernelTable& kernels = best_kernels();
  std::atomic<std::int32_t> seen = 0;  // the sums are used, so that the reads happen
  return static_cast<double>(bytes) / best_seconds(team, [&](TeamMember& member) {
           seen += kernels.read_lines(part(member).data(), part(member).size() / line);
         });
}

double product_peak(int threads) {
  constexpr std::int64_t rounds = 2'000'000;
  ThreadTeam team(threads);
  const KernelTable& kernels = best_kernels();
  std::atomic<std::int32_t> seen = 0;
  const double seconds =
      best_seconds(team, [&](TeamMember& /*member*/) { seen += kernels.spin_products(rounds); });
  return static_cast<double>(threads) * static_cast<double>(rounds) * kernels.spin_products_size / seconds;
}

}  // namespace calla::cpu
