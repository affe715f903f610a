#include "cli/bench_machine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <sys/mman.h>

namespace calla::cli {
namespace {

/// Seconds from when all threads are ready until the last has done `work(thread)`.
template <class Work>
double timed(int threads, const Work& work) {
  std::latch ready(threads + 1);
  std::vector<std::jthread> team;
  team.reserve(static_cast<std::size_t>(threads));
  for (int thread = 0; thread < threads; ++thread) {
    team.emplace_back([&work, &ready, thread] {
      ready.arrive_and_wait();
      work(thread);
    });
  }
  ready.arrive_and_wait();
  const auto begin = std::chrono::steady_clock::now();
  team.clear();  // joins
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

constexpr int passes = 5;
constexpr std::size_t large_page = std::size_t{2} << 20;
constexpr std::size_t buffer_pages = 256;
struct alignas(large_page) Page {
  std::array<std::uint64_t, large_page / sizeof(std::uint64_t)> words;
};

std::unique_ptr<Page[]> large_pages() {
  auto pages = std::make_unique_for_overwrite<Page[]>(buffer_pages);
#ifdef MADV_HUGEPAGE
  // Only advice: without large pages the measurement stands, a little lower.
  static_cast<void>(madvise(pages.get(), buffer_pages * large_page, MADV_HUGEPAGE));
#endif
  return pages;
}

std::uint64_t sum(const Page& page) {
  std::uint64_t total = 0;
  for (const std::uint64_t word : page.words) total += word;
  return total;
}

// Vectors of the compiler's own, so that one loop serves every processor; chains enough to keep all units
// busy while each multiply-add waits for the one before it.
template <int Bytes>
struct Vector {
  using Type [[gnu::vector_size(Bytes)]] = float;
};
constexpr int rounds = 4'000'000;

template <int Bytes, int Chains>
[[gnu::always_inline]] inline float multiply_add_chains() {
  using V = typename Vector<Bytes>::Type;
  std::array<V, Chains> chains;
  for (int i = 0; i < Chains; ++i) chains[static_cast<std::size_t>(i)] = V{} + 1e-3F * static_cast<float>(i);
  const V factor = V{} + 0.999F;
  const V addend = V{} + 1e-3F;
  for (int round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
    for (std::size_t i = 0; i < Chains; ++i) chains[i] = chains[i] * factor + addend;
  }
  float total = 0;
  for (const V& chain : chains) {
    for (int lane = 0; lane < static_cast<int>(Bytes / sizeof(float)); ++lane) total += chain[lane];
  }
  return total;
}

struct Kernel {
  float (*run)();
  int lanes;  // multiply-adds of a round
};

#ifdef __x86_64__
[[gnu::target("avx512f")]] float run_avx512() { return multiply_add_chains<64, 16>(); }
[[gnu::target("avx2,fma")]] float run_avx2() { return multiply_add_chains<32, 12>(); }
#endif
float run_base() { return multiply_add_chains<16, 12>(); }

Kernel widest_kernel() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return {run_avx512, 16 * 16};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {run_avx2, 8 * 12};
#endif
  return {run_base, 4 * 12};
}

}  // namespace

double read_bandwidth(int threads) {
  const std::unique_ptr<Page[]> pages = large_pages();
  const auto part = [&](int thread) {
    const std::size_t begin =
        buffer_pages * static_cast<std::size_t>(thread) / static_cast<std::size_t>(threads);
    const std::size_t end =
        buffer_pages * static_cast<std::size_t>(thread + 1) / static_cast<std::size_t>(threads);
    return std::span(pages.get() + begin, end - begin);
  };
  timed(threads, [&](int thread) {
    for (Page& page : part(thread)) page.words.fill(1);
  });
  std::atomic<std::uint64_t> seen = 0;  // the sums are used, so that the reads happen
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const double seconds = timed(threads, [&](int thread) {
      std::uint64_t total = 0;
      for (const Page& page : part(thread)) total += sum(page);
      seen += total;
    });
    best = std::max(best, buffer_pages * large_page / seconds);
  }
  return best;
}

double multiply_add_peak(int threads) {
  const Kernel kernel = widest_kernel();
  std::atomic<float> seen = 0;
  double best = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const double seconds = timed(threads, [&](int) { seen = kernel.run(); });
    best = std::max(best, double{1} * threads * rounds * kernel.lanes / seconds);
  }
  return best;
}

}  // namespace calla::cli
