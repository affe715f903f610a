// The most probable tokens of a row, in order, found through the peaks of its groups.
//
// A bound that `count` groups' peaks reach has at least `count` values at or above it, and all of these lie
// in groups whose peak reaches it: usually little more than `count` groups, which are read again from the
// second-level cache. So the list is exact, and its values are what the whole row has above the bound.
#pragma once
#include <cstdint>

#include "cuda/sample_block.cuh"

namespace calla::cuda {

inline constexpr int rank_capacity = 1024;
inline constexpr int histogram_bins = 1024;

/// A choice among the most probable tokens is made from a list if it can be: an attempt with few, one with
/// many.
inline constexpr int short_list = 64;
inline constexpr int long_list = 800;

/// What the block shares. Keys give a bound, entries in any order are gathered above it and ranked; a
/// histogram comes before other entries.
template <int vocabulary>
struct DrawMemory {
  static constexpr int groups = sample_groups(vocabulary);

  SlotSampling sampling;
  union {
    std::uint32_t keys[draw_threads];
    struct {
      std::uint64_t entries[rank_capacity];
      std::uint64_t ranked[rank_capacity];
    };
    struct {
      std::uint32_t counts[histogram_bins];
      std::uint32_t masses[3][histogram_bins];
    };
  };
  double sums[rank_capacity];  // of the weights of ranked entries and all before
  std::uint16_t groups_reaching[groups];
  std::uint32_t bound;
  int group_count;
  int entry_count;
};

/// The peaks of neighbouring groups in one thread's registers.
template <int vocabulary>
struct ThreadPeaks {
  static constexpr int groups = sample_groups(vocabulary);
  static constexpr int size = (groups + draw_threads - 1) / draw_threads;
  static_assert(groups % size == 0, "a thread has all of its groups or none");

  float of[size];

  __device__ static int first() { return static_cast<int>(threadIdx.x) * size; }
  __device__ static bool any() { return first() < groups; }
  __device__ static void load(const float* row, float fill, float (&values)[size]) {
#pragma unroll
    for (int i = 0; i < size; ++i) values[i] = fill;
    if (!any()) return;
    if constexpr (size % 4 == 0) {
#pragma unroll
      for (int i = 0; i < size; i += 4) {
        const float4 v = *reinterpret_cast<const float4*>(row + first() + i);
        values[i] = v.x;
        values[i + 1] = v.y;
        values[i + 2] = v.z;
        values[i + 3] = v.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < size; ++i) values[i] = row[first() + i];
    }
  }
  __device__ explicit ThreadPeaks(const float* row) { load(row, no_value, of); }
  __device__ float max() const {
    float largest = of[0];
#pragma unroll
    for (int i = 1; i < size; ++i) largest = fmaxf(largest, of[i]);
    return largest;
  }
};

/// A key that at least `count` keys reach, and few more; the lowest if there are not so many finite ones.
/// `reaching` counts them; the finite ones are from `smallest` to `largest`.
template <class Reaching>
__device__ std::uint32_t bisect_keys(std::uint32_t smallest, std::uint32_t largest, int count,
                                     Reaching reaching) {
  std::uint32_t low = lowest_key;
  std::uint32_t high = largest + 1;
  std::uint32_t middle = low;
#pragma unroll 1
  do {
    const int n = reaching(middle);
    if (n < count) {
      high = middle;
    } else {
      low = max(middle, smallest);
      if (n <= count + count / 4 + 4) break;
    }
    middle = low + (high - low) / 2;
  } while (high > low + 1);
  return low;
}

/// The block: of the keys of all groups.
template <int vocabulary>
__device__ std::uint32_t bound_of_groups(const ThreadPeaks<vocabulary>& peaks, int count) {
  std::uint32_t keys[peaks.size];
  std::uint32_t beyond_lowest = 0xFFFFFFFF;
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < peaks.size; ++i) {
    keys[i] = peaks.any() ? order_key(peaks.of[i]) : 0;
    largest = max(largest, keys[i]);
    beyond_lowest = min(beyond_lowest, keys[i] - lowest_key);  // of smaller keys: very large
  }
  const std::uint32_t smallest = ~block_max(~beyond_lowest) + lowest_key;
  return bisect_keys(smallest, block_max(largest), count, [&](std::uint32_t key) {
    int n = 0;
#pragma unroll
    for (const std::uint32_t one : keys) n += one >= key ? 1 : 0;
    return block_sum(n);
  });
}

/// The first warp: of the largest of each thread's groups. Faster, but good for few tokens only.
template <int vocabulary>
__device__ std::uint32_t bound_of_threads(DrawMemory<vocabulary>& memory,
                                          const ThreadPeaks<vocabulary>& peaks, int count) {
  memory.keys[threadIdx.x] = peaks.any() ? order_key(peaks.max()) : 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    std::uint32_t keys[draw_threads / 32];
    std::uint32_t beyond_lowest = 0xFFFFFFFF;
    std::uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < draw_threads / 32; ++i) {
      keys[i] = memory.keys[i * 32 + static_cast<int>(threadIdx.x)];
      largest = max(largest, keys[i]);
      beyond_lowest = min(beyond_lowest, keys[i] - lowest_key);
    }
    const std::uint32_t smallest = __reduce_min_sync(all_lanes, beyond_lowest) + lowest_key;
    largest = __reduce_max_sync(all_lanes, largest);
    const std::uint32_t bound = bisect_keys(smallest, largest, count, [&](std::uint32_t key) {
      int n = 0;
#pragma unroll
      for (const std::uint32_t one : keys) n += one >= key ? 1 : 0;
      return static_cast<int>(__reduce_add_sync(all_lanes, static_cast<unsigned>(n)));
    });
    if (threadIdx.x == 0) memory.bound = bound;
  }
  __syncthreads();
  return memory.bound;
}

/// A key that at least `count` values reach, or the lowest.
template <int vocabulary>
__device__ std::uint32_t value_bound(DrawMemory<vocabulary>& memory, const ThreadPeaks<vocabulary>& peaks,
                                     int count) {
  return count <= short_list ? bound_of_threads(memory, peaks, count) : bound_of_groups(peaks, count);
}

/// Sorts the first `count` entries into `ranked`: a few by counting, each, those before it, more by a bitonic
/// network.
template <int vocabulary>
__device__ void rank_entries(DrawMemory<vocabulary>& memory, int count) {
  constexpr int few = draw_threads / 2;
  const int thread = static_cast<int>(threadIdx.x);
  if (count <= few) {
    int bits = 5;
    while (count << bits > draw_threads) --bits;
    const int lanes = 1 << bits;  // share an entry
    const int i = thread >> bits;
    const int part = thread & (lanes - 1);
    const std::uint64_t mine = memory.entries[min(i, count - 1)];
    int rank = 0;
#pragma unroll 4
    for (int j = part; j < count; j += lanes) rank += memory.entries[j] > mine ? 1 : 0;
#pragma unroll 1
    for (int other = lanes / 2; other > 0; other /= 2) rank += __shfl_xor_sync(all_lanes, rank, other);
    if (i < count && part == 0) memory.ranked[rank] = mine;
  } else {
    static_assert(rank_capacity <= 2 * draw_threads);
    for (int i = thread; i < rank_capacity; i += draw_threads)
      memory.ranked[i] = i < count ? memory.entries[i] : 0;
#pragma unroll 1
    for (int run = 2; run <= rank_capacity; run *= 2) {
#pragma unroll 1
      for (int apart = run / 2; apart > 0; apart /= 2) {
        __syncthreads();
        const int i = 2 * thread - (thread & (apart - 1));
        const std::uint64_t first = memory.ranked[i];
        const std::uint64_t second = memory.ranked[i + apart];
        if ((first < second) == ((i & run) == 0)) {
          memory.ranked[i] = second;
          memory.ranked[i + apart] = first;
        }
      }
    }
  }
  __syncthreads();
}

struct Ranking {
  int size = 0;           // more than rank_capacity: not ranked
  bool complete = false;  // no finite value at or above the floor is missing
};

/// Calls `visit`(value, token) for all values from `bound` on; groups whose peak is below it are not read.
/// Half a warp takes a group, or `at_once`, so that their loads overlap.
template <int at_once, int vocabulary, class Visit>
__device__ void each_reaching(DrawMemory<vocabulary>& memory, const RowValues& values,
                              const ThreadPeaks<vocabulary>& peaks, float bound, Visit visit) {
  constexpr int lanes = sample_group / 4;
  constexpr int apart = draw_threads / lanes;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) memory.group_count = 0;
  __syncthreads();
  unsigned reaching = 0;
#pragma unroll
  for (int i = 0; i < peaks.size; ++i) reaching |= (peaks.of[i] >= bound ? 1U : 0U) << i;
#pragma unroll 1
  for (; reaching != 0; reaching &= reaching - 1) {
    const int group = peaks.first() + __ffs(static_cast<int>(reaching)) - 1;
    memory.groups_reaching[atomicAdd(&memory.group_count, 1)] = static_cast<std::uint16_t>(group);
  }
  __syncthreads();
  const int count = memory.group_count;
#pragma unroll 1
  for (int base = thread / lanes; base < count; base += at_once * apart) {
    int token[at_once];
    float4 four[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const int at = base + i * apart;
      token[i] = memory.groups_reaching[min(at, count - 1)] * sample_group + thread % lanes * 4;
      four[i] = at < count ? values.four(token[i]) : make_float4(no_value, no_value, no_value, no_value);
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (fmaxf(fmaxf(four[i].x, four[i].y), fmaxf(four[i].z, four[i].w)) < bound) continue;
      if (four[i].x >= bound) visit(four[i].x, token[i]);
      if (four[i].y >= bound) visit(four[i].y, token[i] + 1);
      if (four[i].z >= bound) visit(four[i].z, token[i] + 2);
      if (four[i].w >= bound) visit(four[i].w, token[i] + 3);
    }
  }
  __syncthreads();
}

/// Ranks all values not below some bound: `count` at least if there are so many, no value below `floor`.
template <int vocabulary>
__device__ Ranking rank_largest(DrawMemory<vocabulary>& memory, const RowValues& values,
                                const ThreadPeaks<vocabulary>& peaks, int count, std::uint32_t floor) {
  if (threadIdx.x == 0) memory.entry_count = 0;
  const std::uint32_t bound = max(value_bound(memory, peaks, count), floor);
  each_reaching<1>(memory, values, peaks, key_value(bound), [&](float value, int token) {
    const int at = atomicAdd(&memory.entry_count, 1);
    if (at < rank_capacity) memory.entries[at] = rank_entry(value, token);
  });
  const Ranking result{memory.entry_count, bound == floor};
  if (result.size > 0 && result.size <= rank_capacity) rank_entries(memory, result.size);
  return result;
}

/// Ranks the `count` largest one after the other: for rows where too many are equal to be ranked at once.
template <int vocabulary>
__device__ void select_largest(DrawMemory<vocabulary>& memory, const RowValues& values, int count) {
  std::uint64_t last = ~std::uint64_t{0};
  for (int i = 0; i < count; ++i) {
    std::uint64_t best = 0;
    for (int token = static_cast<int>(threadIdx.x); token < values.count; token += draw_threads) {
      const std::uint64_t entry = rank_entry(values.data[token], token);
      if (entry < last && entry > best) best = entry;
    }
    last = block_max(best);
    if (threadIdx.x == 0) memory.ranked[i] = last;
  }
  __syncthreads();
}

/// The running sums of the weights of the first `count` ranked entries on top of `before`; returns how many
/// of them have a weight of at least `min_p`. Weights are those of the host to the last digits of double.
template <int vocabulary>
__device__ int sum_ranked(DrawMemory<vocabulary>& memory, int count, double before, double peak) {
  const double rate = memory.sampling.rate;
  const double min_p{memory.sampling.min_p};
  int common = 0;
#pragma unroll 1
  for (int base = 0; base < count; base += draw_threads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const double w = i < count ? exp((static_cast<double>(entry_value(memory.ranked[i])) - peak) * rate) : 0;
    const Prefix<double> sum = block_prefix(w);
    if (i < count) memory.sums[i] = before + sum.through;
    before += sum.total;
    common += __syncthreads_count(i < count && w >= min_p);
  }
  return common;
}

}  // namespace calla::cuda
