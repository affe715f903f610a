// The exact way for rows whose choice lies deep: places in the order of all tokens, by count or by mass,
// without sorting them.
//
// One pass puts all values into bins of equal width in log-probability, with the count and the mass of each;
// sums of the bins say in which one a place lies, and its tokens are few enough to be ranked. Where they are
// not (values very close to each other, or equal), the bin is divided again by rank entries, in which no two
// tokens are equal, so this ends. Masses are integers, hence exact and independent of the order of adding.
#pragma once
#include <cstdint>

#include "cuda/sample_rank.cuh"

namespace calla::cuda {

// A weight is at most 1 and a mass unit 2^-38, rounded to nearest: the masses of a quarter of a million
// tokens are off by 1e-9 together. Three limbs of 13 bits each are added up in 32 bits.
inline constexpr int mass_limb_bits = 13;
inline constexpr float mass_units = 0x1p38F;
inline constexpr double mass_unit = 0x1p-38;
inline constexpr float bins_per_log2 = 25.6F;  // the last bin begins below half a mass unit

__device__ inline std::uint64_t mass_of(float weight) { return __float2ull_rn(weight * mass_units); }

/// Two neighbouring bins a thread, with sums over all bins before them.
struct Histogram {
  std::uint32_t count[2];
  std::uint64_t mass[2];
  std::uint32_t count_before;
  std::uint64_t mass_before;
  std::uint32_t total_count;
  std::uint64_t total_mass;
};

/// A run of tokens in the order of their probability, one bin, and what lies before it.
struct Run {
  int bin;
  int count;
  std::uint32_t count_before;
  std::uint64_t mass_before;
};

/// The tokens of one bin of the first histogram, within a range of rank entries.
struct BinRange {
  int bin;
  std::uint64_t low;
  std::uint64_t high;
};

enum class Measure { count, mass, mass_beyond };

/// The tokens of a row by count and by mass. Everything is in line: the compiler must see that the memory is
/// shared.
template <int vocabulary>
class DeepRow {
 public:
  /// Of the values from `least` on.
  __device__ DeepRow(DrawMemory<vocabulary>& memory, const RowValues& values,
                     const ThreadPeaks<vocabulary>& peaks, float peak, float least)
      : memory_(memory),
        values_(values),
        peaks_(peaks),
        peak_(peak),
        least_(least),
        scale_{memory.sampling.scale_high, memory.sampling.scale_low} {
    const float min_p = memory.sampling.min_p;
    std::uint64_t common = 0;
    all_ = histogram([&](float value, int) { return log_bin(value); },
                     [&](float w, std::uint64_t mass) {
                       if (w >= min_p) common += mass;
                     });
    common_mass_ = block_prefix(common).total;
  }

  __device__ double total() const { return static_cast<double>(all_.total_mass) * mass_unit; }
  /// The mass of the tokens whose weight is at least min_p.
  __device__ double common() const { return static_cast<double>(common_mass_) * mass_unit; }

  /// The number of tokens.
  __device__ int count() const { return static_cast<int>(all_.total_count); }

  /// Ranks the tokens around a place, sums their weights and returns the place's index among them. By count:
  /// token number `target` <= count(), from 1. By mass: the first token with which the mass reaches `target`,
  /// or exceeds it.
  __device__ int find(Measure measure, double target) {
    const bool by_mass = measure != Measure::count;
    const double units = by_mass ? target / mass_unit : target;
    auto place = static_cast<std::uint64_t>(measure == Measure::mass_beyond ? floor(units) + 1 : ceil(units));
    if (by_mass) place = max(std::uint64_t{1}, min(place, all_.total_mass));
    const Run run = rank_run(by_mass, place);
    if (!by_mass) return static_cast<int>(place - run.count_before) - 1;
    return first_reaching(memory_.sums, run.count, target, measure == Measure::mass_beyond);
  }

 private:
  __device__ int log_bin(float value) const {
    return static_cast<int>(fminf((peak_ - value) * scale_.high * bins_per_log2, histogram_bins - 1.0F));
  }

  template <class Visit>
  __device__ void each(float bound, Visit visit) {
    each_reaching<4>(memory_, values_, peaks_, bound, visit);
  }
  template <class Visit>
  __device__ void each_in(const BinRange& range, Visit visit) {
    // A little below the bin's lower end: log_bin decides.
    const float depth = static_cast<float>(range.bin + 1) / (scale_.high * bins_per_log2);
    const float bound =
        range.bin == histogram_bins - 1 ? least_ : peak_ - depth - 1e-5F * (fabsf(peak_) + depth);
    each(fmaxf(least_, bound), [&](float value, int token) {
      if (log_bin(value) != range.bin) return;
      const std::uint64_t entry = rank_entry(value, token);
      if (entry >= range.low && entry <= range.high) visit(value, entry);
    });
  }

  /// `bin_of`(value, token) is the bin, or -1; `observe` sees each weight and its mass.
  template <class BinOf, class Observe>
  __device__ Histogram histogram(BinOf bin_of, Observe observe) {
    for (int i = static_cast<int>(threadIdx.x); i < histogram_bins; i += draw_threads) {
      memory_.counts[i] = 0;
      for (auto& limb : memory_.masses) limb[i] = 0;
    }
    __syncthreads();
    each(least_, [&](float value, int token) {
      const int bin = bin_of(value, token);
      if (bin < 0) return;
      const float w = weight(value - peak_, scale_);
      const std::uint64_t mass = mass_of(w);
      observe(w, mass);
      atomicAdd(&memory_.counts[bin], 1U);
#pragma unroll
      for (int limb = 0; limb < 3; ++limb) {
        const auto part =
            static_cast<std::uint32_t>(mass >> (mass_limb_bits * limb)) & ((1U << mass_limb_bits) - 1);
        if (part != 0) atomicAdd(&memory_.masses[limb][bin], part);
      }
    });
    __syncthreads();
    Histogram h;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int bin = static_cast<int>(threadIdx.x) * 2 + i;
      h.count[i] = memory_.counts[bin];
      h.mass[i] = 0;
#pragma unroll
      for (int limb = 0; limb < 3; ++limb)
        h.mass[i] += std::uint64_t{memory_.masses[limb][bin]} << (mass_limb_bits * limb);
    }
    const auto count = block_prefix(h.count[0] + h.count[1]);
    const auto mass = block_prefix(h.mass[0] + h.mass[1]);
    h.count_before = count.before;
    h.total_count = count.total;
    h.mass_before = mass.before;
    h.total_mass = mass.total;
    return h;
  }

  /// The bin in which the running mass, or count, reaches `place`: just one thread has it.
  __device__ static Run pick(const Histogram& h, bool by_mass, std::uint64_t place) {
    __shared__ Run found;
    const std::uint64_t before = by_mass ? h.mass_before : h.count_before;
    const std::uint64_t first = before + (by_mass ? h.mass[0] : h.count[0]);
    const std::uint64_t second = first + (by_mass ? h.mass[1] : h.count[1]);
    if (before < place && place <= second) {
      const bool in_first = place <= first;
      found.bin = static_cast<int>(threadIdx.x) * 2 + (in_first ? 0 : 1);
      found.count = static_cast<int>(in_first ? h.count[0] : h.count[1]);
      found.count_before = h.count_before + (in_first ? 0 : h.count[0]);
      found.mass_before = h.mass_before + (in_first ? 0 : h.mass[0]);
    }
    __syncthreads();
    const Run result = found;
    __syncthreads();
    return result;
  }

  /// Divides until the run of a place can be ranked, ranks it and sums it.
  __device__ Run rank_run(bool by_mass, std::uint64_t place) {
    Run run = pick(all_, by_mass, place);
    BinRange range{run.bin, 0, ~std::uint64_t{0}};
    while (run.count > rank_capacity) {
      std::uint64_t low = ~std::uint64_t{0};
      std::uint64_t high = 0;
      each_in(range, [&](float, std::uint64_t entry) {
        low = min(low, entry);
        high = max(high, entry);
      });
      range.low = ~block_max(~low);
      range.high = block_max(high);
      const int shift = max(0, 54 - __clzll(static_cast<long long>(range.high - range.low)));
      const auto bin_of = [&](float value, int token) {
        const std::uint64_t entry = rank_entry(value, token);
        const bool inside = log_bin(value) == range.bin && entry >= range.low && entry <= range.high;
        return inside ? static_cast<int>((range.high - entry) >> shift) : -1;
      };
      Histogram h = histogram(bin_of, [](float, std::uint64_t) {});
      h.count_before += run.count_before;
      h.mass_before += run.mass_before;
      run = pick(h, by_mass, place);
      range.high -= static_cast<std::uint64_t>(run.bin) << shift;
      range.low = max(range.low, range.high - ((std::uint64_t{1} << shift) - 1));
    }
    if (threadIdx.x == 0) memory_.entry_count = 0;
    __syncthreads();
    each_in(range,
            [&](float, std::uint64_t entry) { memory_.entries[atomicAdd(&memory_.entry_count, 1)] = entry; });
    __syncthreads();
    rank_entries(memory_, run.count);
    sum_ranked(memory_, run.count, static_cast<double>(run.mass_before) * mass_unit, double{peak_});
    __syncthreads();
    return run;
  }

  DrawMemory<vocabulary>& memory_;
  RowValues values_;
  const ThreadPeaks<vocabulary>& peaks_;
  float peak_;
  float least_;
  Scale scale_;
  Histogram all_;
  std::uint64_t common_mass_ = 0;
};

}  // namespace calla::cuda
