// The second sampling kernel: one block a row chooses the token, counts it and reports it.
//
// Formula: as model/sampler.h; one uniform number against the running sum of weights exp((x - max) / T), in
//   the order of ids where nothing is cut off, else in the order of probability.
// Shapes: peaks and sums [rows][vocabulary / 64], and the values of a few groups again; deep choices read
// those
//   of all groups that matter two to four times.
// Rounding: weights of ranked tokens and all running sums are double; sums of groups float. The token is the
//   host's unless the uniform number is within 1e-6 of the border between two tokens.
// Bytes: 16 to 31 KB a row and 256 B for each group that is read again.
// Bound: latency, a dozen dependent steps of one block.
#pragma once
#include "cuda/ptx.cuh"
#include "cuda/sample_histogram.cuh"
#include "cuda/sample_ptx.cuh"
#include "model/philox.h"

namespace calla::cuda {

/// A key that all values reach whose weight is at least min_p, and few more.
__device__ inline std::uint32_t min_p_floor(const SlotSampling& s, float peak) {
  if (s.min_p <= 0) return lowest_key;
  const double depth = -static_cast<double>(s.temperature) * log(fmin(1.0, static_cast<double>(s.min_p)));
  return max(lowest_key, order_key(static_cast<float>(peak - depth - 1e-6 * (fabs(peak) + depth))));
}

/// The choice among the most probable tokens, or the most probable one, lowest id among equals, where the
/// temperature is 0; -1 if those that fit a list are not enough to make it.
template <int vocabulary>
__device__ int draw_listed(DrawMemory<vocabulary>& memory, const RowValues& values,
                           const ThreadPeaks<vocabulary>& peaks, float peak, double all_mass, double random) {
  const SlotSampling& s = memory.sampling;
  // What top_k keeps is all of what top_p takes its share of.
  const std::uint32_t floor = s.top_k > 0 || s.temperature <= 0 ? lowest_key : min_p_floor(s, peak);
  const bool greedy = s.temperature <= 0;
#pragma unroll 1
  for (int size = greedy ? 1 : s.top_k > 0 ? s.top_k : short_list; size <= long_list;) {
    const Ranking ranking = rank_largest(memory, values, peaks, size, floor);
    if (ranking.size > rank_capacity) return -1;
    if (greedy) return entry_token(memory.ranked[0]);
    const int count = s.top_k > 0 ? min(s.top_k, ranking.size) : ranking.size;
    const int common = max(1, sum_ranked(memory, count, 0, double{peak}));
    __syncthreads();
    const double listed = memory.sums[count - 1];
    const double reach = static_cast<double>(s.top_p) * (s.top_k > 0 ? listed : all_mass);
    if (s.top_k > 0 || ranking.complete || (s.top_p < 1 && listed >= reach)) {
      int last = count - 1;
      if (s.top_p < 1) last = first_reaching(memory.sums, count, reach, false);
      last = min(last, common - 1);
      const double target = random * memory.sums[last];
      return entry_token(memory.ranked[first_reaching(memory.sums, last + 1, target, true)]);
    }
    if (size == long_list) return -1;
    size = long_list;
  }
  return -1;
}

/// The same for any number of tokens.
template <int vocabulary>
__device__ int draw_deep(DrawMemory<vocabulary>& memory, const RowValues& values,
                         const ThreadPeaks<vocabulary>& peaks, float peak, double random) {
  const SlotSampling& s = memory.sampling;
  // Values that are cut off for certain are passed over quickly.
  std::uint32_t floor = lowest_key;
  if (s.top_k > 0) {
    floor = value_bound(memory, peaks, s.top_k);
  } else if (s.top_p >= 1) {
    floor = min_p_floor(s, peak);
  }
  DeepRow<vocabulary> row(memory, values, peaks, peak, key_value(floor));
  double kept = row.total();
  int token = 0;
#pragma unroll 1
  for (const Measure cut : {Measure::count, Measure::mass, Measure::mass_beyond}) {  // top_k, top_p, the draw
    const bool is_draw = cut == Measure::mass_beyond;
    if (cut == Measure::count && (s.top_k <= 0 || s.top_k >= row.count())) continue;
    if (cut == Measure::mass && s.top_p >= 1) continue;
    if (is_draw && s.min_p > 0) kept = fmin(kept, row.common());
    const double share = is_draw ? random : static_cast<double>(s.top_p);
    const int at = row.find(cut, cut == Measure::count ? s.top_k : share * kept);
    kept = fmin(kept, memory.sums[at]);
    token = entry_token(memory.ranked[at]);
  }
  return token;
}

/// The choice among all tokens, by id.
template <int vocabulary>
__device__ int draw_by_id(DrawMemory<vocabulary>& memory, const RowValues& values,
                          const ThreadPeaks<vocabulary>& peaks, float peak,
                          const float (&sums)[ThreadPeaks<vocabulary>::size], double random) {
  __shared__ int group;
  __shared__ double rest;
  __shared__ float group_peak;
  constexpr int size = ThreadPeaks<vocabulary>::size;
  const Scale scale{memory.sampling.scale_high, memory.sampling.scale_low};
  double mass[size];
  double mine = 0;
#pragma unroll
  for (int i = 0; i < size; ++i) {
    mass[i] = static_cast<double>(sums[i]) * static_cast<double>(weight(peaks.of[i] - peak, scale));
    mine += mass[i];
  }
  const Prefix<double> prefix = block_prefix(mine);
  // Below the sum of all, so that one thread has it.
  const double target = fmin(random * prefix.total, prefix.total * (1 - 0x1p-52));
  if (prefix.before <= target && target < prefix.through) {
    double before = prefix.before;
    int last = 0;  // with any mass
    double last_before = before;
#pragma unroll
    for (int i = 0; i < size; ++i) {
      if (mass[i] > 0 && before <= target) {
        last = i;
        last_before = before;
        group_peak = peaks.of[i];
      }
      before += mass[i];
    }
    group = peaks.first() + last;
    rest = target - last_before;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    const int first = group * sample_group + lane * 2;
    const double within = rest / static_cast<double>(weight(group_peak - peak, scale));
    double w[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      w[i] = first + i < values.count ? weight(values.data[first + i] - group_peak, scale) : 0;
    double through = w[0] + w[1];
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const double other = __shfl_up_sync(all_lanes, through, lanes);
      if (lane >= lanes) through = other + through;
    }
    // The first token that goes beyond, else the last one with a weight.
    const bool beyond_first = w[0] > 0 && through - w[1] > within;
    const bool beyond = beyond_first || (w[1] > 0 && through > within);
    const int id = beyond_first || w[1] == 0 ? first : first + 1;
    const unsigned candidates = __ballot_sync(all_lanes, beyond);
    const unsigned weighty = __ballot_sync(all_lanes, w[0] > 0 || w[1] > 0);
    const int source =
        candidates != 0 ? __ffs(static_cast<int>(candidates)) - 1 : 31 - __clz(static_cast<int>(weighty));
    const int token = __shfl_sync(all_lanes, id, source);
    if (lane == 0) group = token;
  }
  __syncthreads();
  const int token = group;
  __syncthreads();
  return token;
}

template <int vocabulary>
__device__ int draw_token(DrawMemory<vocabulary>& memory, const RowValues& values,
                          const ThreadPeaks<vocabulary>& peaks, const float* row_sums) {
  const SlotSampling& s = memory.sampling;
  const float peak = key_value(block_max(order_key(peaks.max())));
  if (peak == no_value) return 0;
  const bool greedy = s.temperature <= 0;
  const double random = greedy ? 0 : uniform(s.seed, s.draws);
  double all_mass = 0;
  if (needs_sums(s)) {
    float sums[ThreadPeaks<vocabulary>::size];
    peaks.load(row_sums, 0, sums);
    if (!is_ranked(s)) return draw_by_id(memory, values, peaks, peak, sums, random);
    const Scale scale{s.scale_high, s.scale_low};
    double mine = 0;
#pragma unroll
    for (int i = 0; i < peaks.size; ++i)
      mine += static_cast<double>(sums[i]) * static_cast<double>(weight(peaks.of[i] - peak, scale));
    all_mass = block_prefix(mine).total;
  }
  const int listed = draw_listed(memory, values, peaks, peak, all_mass, random);
  if (listed >= 0) return listed;
  if (!greedy) return draw_deep(memory, values, peaks, peak, random);
  select_largest(memory, values, 1);
  return entry_token(memory.ranked[0]);
}

/// Writes the log-probabilities of the token and of the most probable ones; overwrites the ranked entries.
template <int vocabulary>
__device__ void report_logprobs(DrawMemory<vocabulary>& memory, const float* logits, const float* raw_peaks,
                                const float* raw_sums, int token, SampleRecord& record) {
  const RowValues values{logits, vocabulary};
  const ThreadPeaks<vocabulary> peaks(raw_peaks);
  float sums[ThreadPeaks<vocabulary>::size];
  peaks.load(raw_sums, 0, sums);
  const float peak = key_value(block_max(order_key(peaks.max())));
  double mine = 0;
#pragma unroll
  for (int i = 0; i < peaks.size; ++i)
    mine += static_cast<double>(sums[i]) * static_cast<double>(weight(peaks.of[i] - peak, natural_scale));
  const double normaliser = double{peak} + log(block_prefix(mine).total);
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - normaliser);
  };
  const int count = memory.sampling.top_logprobs;
  if (count > 0) {
    const Ranking ranking = rank_largest(memory, values, peaks, count, lowest_key);
    if (ranking.size > rank_capacity) select_largest(memory, values, count);
  }
  if (threadIdx.x < count) {
    const std::uint64_t entry = memory.ranked[threadIdx.x];
    record.alternative[threadIdx.x] = {entry_token(entry), logprob(entry_value(entry))};
  }
  if (threadIdx.x == 0) {
    record.logprob = logprob(logits[token]);
    record.alternatives = count;
  }
}

template <int vocabulary>
__global__ void __launch_bounds__(draw_threads, 1) draw_tokens(SampleStep step) {
  constexpr std::size_t groups = sample_groups(vocabulary);
  __shared__ DrawMemory<vocabulary> memory;
  wait_for_predecessor();
  release_successor();
  const std::size_t row = blockIdx.x;
  const ThreadPeaks<vocabulary> peaks(step.peaks + row * groups);
  const int slot = step.slots[row];
  const std::uint32_t number = *step.step;
  SampleRecord& record = step.records[number % record_steps * step.record_rows + row];
  const auto report = [&](int token, std::uint32_t flags) {
    return std::uint64_t{number} << 32 | flags << record_token_bits | static_cast<std::uint32_t>(token);
  };
  SlotSampling& stored = step.sampling[max(slot, 0)];
  constexpr int words = sizeof(SlotSampling) / sizeof(std::uint32_t);
  static_assert(words <= draw_threads && sizeof(SlotSampling) % sizeof(std::uint32_t) == 0);
  if (threadIdx.x < words) {
    reinterpret_cast<std::uint32_t*>(&memory.sampling)[threadIdx.x] =
        reinterpret_cast<const std::uint32_t*>(&stored)[threadIdx.x];
  }
  if (slot < 0 || step.ended[slot] != 0) {
    if (threadIdx.x == 0) {
      step.tokens[row] = 0;
      step.active[row] = 0;
      store_system(&record.head, report(0, 0));
    }
    return;
  }
  bool fault = false;
#pragma unroll
  for (const float peak : peaks.of) fault = fault || isnan(peak);
  if (__syncthreads_or(fault ? 1 : 0) != 0) {
    if (threadIdx.x == 0) {
      step.tokens[row] = 0;
      step.active[row] = 0;
      step.ended[slot] = 1;
      store_system(&record.head, report(0, sample_is_fault));
    }
    return;
  }

  const SlotSampling& s = memory.sampling;
  const float* const logits = step.logits + static_cast<std::size_t>(slot) * vocabulary;
  const RowValues values{is_adjusted(s) ? step.adjusted + row * vocabulary : logits, s.vocabulary};
  const int token = draw_token(memory, values, peaks, step.sums + row * groups);
  const bool with_logprobs = s.top_logprobs >= 0;
  if (with_logprobs) {
    __syncthreads();
    report_logprobs(memory, logits, step.raw_peaks + row * groups, step.raw_sums + row * groups, token,
                    record);
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  bool end = false;
  for (int i = 0; i < s.end_tokens; ++i) end = end || s.end_token[i] == token;
  step.tokens[row] = end ? 0 : token;
  step.active[row] = end ? 0 : 1;
  stored.draws = s.draws + 1;
  if (end) {
    step.ended[slot] = 1;
  } else {
    ++step.positions[slot];
    if (counts_output(s)) ++step.counts[static_cast<std::size_t>(slot) * vocabulary + token];
  }
  const std::uint64_t head = report(
      token, sample_has_token | (end ? sample_is_end : 0U) | (with_logprobs ? sample_has_logprobs : 0U));
  if (with_logprobs) {
    release_system(&record.head, head);
  } else {
    store_system(&record.head, head);
  }
}

}  // namespace calla::cuda
