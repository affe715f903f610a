// The kernels of the CPU backend at the 35B's sizes, one thread, for every instruction set of this machine.
// Each line has its time, the bytes it reads a second or its operations a second (a multiply and an add are
// two), and the share of what the machine does at best, which is measured first.
//
//   build/release/bench/cpu_kernels_bench --benchmark_filter=AVX
#include <array>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "cpu/denormals.h"
#include "cpu/kernels.h"
#include "cpu/kv_cache.h"
#include "cpu/memory.h"
#include "cpu/panels.h"

namespace calla::cpu {
namespace {

constexpr int hidden = 2048;
constexpr std::size_t far_bytes = std::size_t{512} << 20U;  // above every cache
constexpr std::size_t near_bytes = std::size_t{256} << 10U;

/// What the machine does at best with the instructions of a table.
struct Peaks {
  double bytes = 0;     // read from memory, a second
  double floats = 0;    // float32 operations a second
  double products = 0;  // operations of byte products a second
};

template <class Work>
double seconds(Work work) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void randomise(const Region& region) {
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < region.size() / 8; ++i) region.as<std::uint64_t>()[i] = random();
}

const Region& memory() {
  static const Region region = [] {
    Region r(far_bytes);
    randomise(r);
    return r;
  }();
  return region;
}

Peaks measure(const KernelTable& k) {
  constexpr std::int64_t rounds = 10'000'000;
  Peaks peaks;
  peaks.floats =
      2.0 * k.spin_floats_size * rounds / seconds([&] { benchmark::DoNotOptimize(k.spin_floats(rounds)); });
  peaks.products = 2.0 * k.spin_products_size * rounds /
                   seconds([&] { benchmark::DoNotOptimize(k.spin_products(rounds)); });
  peaks.bytes =
      far_bytes / seconds([&] { benchmark::DoNotOptimize(k.read_lines(memory().data(), far_bytes / 64)); });
  return peaks;
}

void count_bytes(benchmark::State& state, double bytes, const Peaks& peaks) {
  const double total = bytes * static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(total / 1e9, benchmark::Counter::kIsRate);
  state.counters["of_peak"] = benchmark::Counter(total / peaks.bytes, benchmark::Counter::kIsRate);
}

void count_operations(benchmark::State& state, double operations, double peak) {
  const double total = operations * static_cast<double>(state.iterations());
  state.counters["GOP/s"] = benchmark::Counter(total / 1e9, benchmark::Counter::kIsRate);
  state.counters["of_peak"] = benchmark::Counter(total / peak, benchmark::Counter::kIsRate);
}

std::vector<float> random_floats(std::size_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

/// Quantised random rows, with the memory they lie in.
struct Rows {
  Rows(const KernelTable& k, int rows, int columns, int planes)
      : values(static_cast<std::size_t>(rows * columns * planes)),
        factors(static_cast<std::size_t>(rows * columns / 32)),
        view{values.data(), factors.data(), columns, planes},
        index(static_cast<std::size_t>(rows)) {
    const std::vector<float> x = random_floats(static_cast<std::size_t>(columns));
    for (int row = 0; row < rows; ++row) {
      index[static_cast<std::size_t>(row)] = row;
      k.quantise(x.data(), columns / 64, planes, values.data() + row * columns * planes,
                 factors.data() + row * columns / 32);
    }
  }
  std::vector<std::int8_t> values;
  std::vector<float> factors;
  QuantisedRows view;
  std::vector<std::int32_t> index;
};

/// Panels one after another through `bytes` of weights.
void linear4(benchmark::State& state, const KernelTable& k, const Peaks& peaks, int columns, int planes,
             int rows, std::size_t bytes) {
  const Rows x(k, rows, columns, planes);
  std::vector<float> out(static_cast<std::size_t>(rows * 16));
  const std::size_t step = panel_bytes(columns, 4);
  const std::size_t panels = bytes / step;
  std::size_t panel = 0;
  for (auto _ : state) {
    k.linear4(memory().data() + panel * step, x.view, x.index.data(), rows, out.data());
    benchmark::DoNotOptimize(out.data());
    if (++panel == panels) panel = 0;
  }
  if (rows <= 2) {
    count_bytes(state, static_cast<double>(step), peaks);
  } else {
    count_operations(state, 2.0 * 16 * columns * rows, peaks.products);
  }
}

void linear8(benchmark::State& state, const KernelTable& k, const Peaks& peaks, int rows) {
  const std::vector<float> x = random_floats(static_cast<std::size_t>(rows * hidden));
  std::vector<float> out(static_cast<std::size_t>(rows * 16));
  const std::size_t step = panel_bytes(hidden, 8);
  std::size_t panel = 0;
  for (auto _ : state) {
    k.linear8(memory().data() + panel * step, hidden, x.data(), x.data(), rows, out.data());
    benchmark::DoNotOptimize(out.data());
    if (++panel == far_bytes / step) panel = 0;
  }
  if (rows == 1) {
    count_bytes(state, static_cast<double>(step), peaks);
  } else {
    count_operations(state, 2.0 * 16 * hidden * rows, peaks.floats);
  }
}

void quantise(benchmark::State& state, const KernelTable& k, const Peaks& peaks, int planes) {
  const std::vector<float> x = random_floats(hidden);
  Rows out(k, 1, hidden, planes);
  for (auto _ : state) {
    k.quantise(x.data(), hidden / 64, planes, out.values.data(), out.factors.data());
    benchmark::DoNotOptimize(out.values.data());
  }
  count_bytes(state, hidden * sizeof(float), peaks);
}

/// Kernels that read and write a few rows: `work(x, y)` on `floats` floats each.
template <class Work>
void rows(benchmark::State& state, const Peaks& peaks, int floats, Work work) {
  const std::vector<float> x = random_floats(static_cast<std::size_t>(floats));
  std::vector<float> y = x;
  for (auto _ : state) {
    work(x.data(), y.data());
    benchmark::DoNotOptimize(y.data());
  }
  count_bytes(state, 2.0 * floats * sizeof(float), peaks);
}

void add_rows(const KernelTable& k, const Peaks& peaks) {
  const auto add = [&](const char* name, int floats, auto work) {
    benchmark::RegisterBenchmark(fmt::format("{}/{}", k.name, name).c_str(),
                                 [=](benchmark::State& state) { rows(state, peaks, floats, work); });
  };
  add("rms_norm", hidden, [&k](const float* x, float* y) { k.rms_norm(x, x, hidden, y); });
  add("group_sums", hidden, [&k](const float* x, float* y) { k.group_sums(x, hidden, y); });
  add("l2_normalise", 128, [&k](const float*, float* y) { k.l2_normalise(y, 1); });
  add("gated_norm", 128, [&k](const float* x, float* y) { k.gated_norm(x, x, x, y); });
  add("rotate", 64, [&k](const float* x, float* y) { k.rotate(y, x); });
  add("swiglu", 16 * 16, [&k](const float* x, float* y) { k.swiglu(x, x, 4, y); });
  add("scatter_add", 16 * 16, [&k](const float* x, float* y) {
    constexpr std::array<std::int32_t, 16> to{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    k.scatter_add(x, to.data(), x, 16, y, 16);
  });
  add("merge", 258, [&k](const float* x, float* y) {
    float peak = x[256];
    float sum = x[257];
    std::vector<float> other(x, x + 256);
    k.merge({y + 256, y + 257, y}, {&peak, &sum, other.data()});
  });
  add("gate_output", 258, [&k](const float* x, float* y) { k.gate_output({y + 256, y + 257, y}, x, y); });
}

void convolve(benchmark::State& state, const KernelTable& k, const Peaks& peaks) {
  constexpr int channels = 128;
  constexpr int tokens = 64;
  std::vector<float> x = random_floats(channels * tokens);
  const std::vector<float> taps = random_floats(4 * channels);
  std::vector<float> window(3 * channels);
  for (auto _ : state) {
    k.convolve(x.data(), channels, tokens, channels, taps.data(), channels, window.data(), channels);
    benchmark::DoNotOptimize(x.data());
  }
  count_bytes(state, 2.0 * channels * tokens * sizeof(float), peaks);
}

/// One value head; operations of the plain recurrence, two of each for S^T k, S^T q, the decay and the
/// update.
void delta_scan(benchmark::State& state, const KernelTable& k, const Peaks& peaks, int tokens) {
  constexpr int dim = 128;
  std::vector<float> s = random_floats(dim * dim);
  std::vector<float> x = random_floats(static_cast<std::size_t>(3 * dim * tokens));
  for (float& value : x) value *= 0.05F;
  const std::vector<float> decay(static_cast<std::size_t>(tokens), 0.95F);
  std::vector<float> out(static_cast<std::size_t>(dim * tokens));
  for (auto _ : state) {
    k.delta_scan(s.data(), x.data(), x.data() + dim, x.data() + 2 * dim, 3 * dim, decay.data(), decay.data(),
                 tokens, out.data(), dim);
    benchmark::DoNotOptimize(out.data());
  }
  count_operations(state, 7.0 * dim * dim * tokens, peaks.floats);
}

void attend(benchmark::State& state, const KernelTable& k, const Peaks& peaks, int queries, int positions) {
  const std::vector<float> q = random_floats(static_cast<std::size_t>(queries * 256));
  const std::vector<std::int32_t> limits(static_cast<std::size_t>(queries), positions);
  std::vector<float> peak(static_cast<std::size_t>(queries), -1e30F);
  std::vector<float> sum(static_cast<std::size_t>(queries));
  std::vector<float> out(static_cast<std::size_t>(queries * 256));
  // Zeros are as good as other numbers here, and never infinite.
  static const Region cache(far_bytes / 2);
  const std::size_t step = 2 * kv_block_elements;
  const std::size_t blocks = queries > 8 ? 1 : cache.size() / (step * 2);
  std::size_t block = 0;
  for (auto _ : state) {
    const std::uint16_t* keys = cache.as<std::uint16_t>() + block * step;
    k.attend(q.data(), queries, keys, keys + kv_block_elements, positions, limits.data(),
             {peak.data(), sum.data(), out.data()});
    benchmark::DoNotOptimize(out.data());
    if (++block == blocks) block = 0;
  }
  if (queries <= 8) {
    count_bytes(state, positions * 1024.0, peaks);
  } else {
    count_operations(state, 4.0 * 256 * positions * queries, peaks.floats);
  }
}

template <class... Arguments>
void add(const KernelTable& k, const std::string& name, Arguments... arguments) {
  benchmark::RegisterBenchmark(fmt::format("{}/{}", k.name, name).c_str(), arguments...);
}

void add_table(const KernelTable& k) {
  const Peaks p = measure(k);
  fmt::print("{}: reads {:.1f} GB/s, {:.0f} GOP/s of float32, {:.0f} GOP/s of byte products (one thread)\n",
             k.name, p.bytes / 1e9, p.floats / 1e9, p.products / 1e9);
  for (const int columns : {512, 2048, 4096}) {
    for (const int planes : {1, 2}) {
      for (const int rows : {1, 2})
        add(k, fmt::format("linear4/memory/columns:{}/planes:{}/rows:{}", columns, planes, rows), linear4, k,
            p, columns, planes, rows, far_bytes);
    }
  }
  for (const int planes : {1, 2})
    add(k, fmt::format("linear4/cache/columns:2048/planes:{}/rows:1", planes), linear4, k, p, 2048, planes, 1,
        near_bytes);
  for (const int planes : {1, 2}) {
    for (const int rows : {4, 8, 16, 64, 128})
      add(k, fmt::format("linear4/memory/columns:2048/planes:{}/rows:{}", planes, rows), linear4, k, p, 2048,
          planes, rows, far_bytes);
  }
  for (const int rows : {1, 4, 64}) add(k, fmt::format("linear8/rows:{}", rows), linear8, k, p, rows);
  for (const int planes : {1, 2}) add(k, fmt::format("quantise/planes:{}", planes), quantise, k, p, planes);
  add_rows(k, p);
  add(k, "convolve", convolve, k, p);
  for (const int tokens : {1, 64})
    add(k, fmt::format("delta_scan/tokens:{}", tokens), delta_scan, k, p, tokens);
  for (const int queries : {8, 64})
    add(k, fmt::format("attend/queries:{}", queries), attend, k, p, queries, 512);
}

}  // namespace
}  // namespace calla::cpu

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const calla::cpu::FlushDenormals flush;  // as in the forward pass
  for (const auto level : {calla::cpu::Level::portable, calla::cpu::Level::avx2, calla::cpu::Level::avx512}) {
    if (const calla::cpu::KernelTable* table = calla::cpu::kernels(level)) calla::cpu::add_table(*table);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
