// A row's tokens in the order of their probability, without sorting the row.
//
// Peaks of groups of 64 tokens lead to the few groups that matter: a bound that the peaks of n groups reach
// has at least n values at or above it, and all of those lie in groups whose peak reaches it. Where a bound
// must be exact, it is selected by its digits, from the highest: a histogram of the digit among the entries
// that share the digits so far. Counts and masses are integers, so histograms by atomic additions are the
// same whatever the order, and all 54 bits of an entry are selected alike: ties need no care.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/sample_block.h"
#include "metal/kernels/sample_values.h"
#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

enum : uint {
  groups = uint(vocabulary) / head_rows,
  thread_groups = (uint(groups) + sample_threads - 1) / sample_threads,
  row_peaks = thread_groups * sample_threads,
  group_pairs = head_rows / 2,
  list_size = sample_threads,
  digit_bits = 9,
  bins = 1U << digit_bits,
  all_digits = uint(entry_bits) / digit_bits,
  bound_digits = 3,  // of a bound that may be a little low
};
static_assert(uint(bins) == sample_threads, "a thread has one bin and one place in the list");
static_assert(uint(all_digits) * digit_bits == entry_bits, "digits are whole");

/// The values a row draws from, and the peaks of their groups, of which a thread sees to every
/// sample_threads-th.
struct Row {
  device const float* values;
  uint count;               // ids from here on are not there
  threadgroup uint* peaks;  // [row_peaks] keys; 0: no such group
  Weights weights;
};

/// What a threadgroup shares to rank a row.
struct Ranking {
  threadgroup ulong* list;        // [list_size]
  threadgroup atomic_uint* low;   // [bins]
  threadgroup atomic_uint* high;  // [bins]
  threadgroup atomic_uint* size;  // of the list
};

/// Calls visit(key, token) for the tokens of all groups whose peak reaches `bound`. A SIMD-group takes those
/// of its threads one by one, two tokens a lane.
template <class Visitor>
inline void each_value(thread const Row& row, uint bound, thread Visitor& visit, thread const Block& block) {
  device const float2* pairs = (device const float2*)row.values;
  for (uint first = block.simd * 32; first < groups; first += sample_threads) {
    const uint peak = row.peaks[first + block.lane];
    uint owners = simd_or(peak != 0 && peak >= bound ? 1U << block.lane : 0U);
    while (owners != 0) {
      const uint group = first + ctz(owners);
      owners &= owners - 1;
      const uint token = group * head_rows + 2 * block.lane;
      const float2 pair = pairs[group * group_pairs + block.lane];
      if (token < row.count) visit(order_key(pair.x), token);
      if (token + 1 < row.count) visit(order_key(pair.y), token + 1);
    }
  }
}

/// What select_entry() counts.
enum class Measure { peaks, tokens, mass };

/// Adds entries with the right upper digits to the histogram of the next one.
template <Measure measure>
struct Tally {
  Ranking ranking;
  Weights weights;
  ulong digits;
  uint shift;

  void operator()(uint key, uint token) {
    const ulong entry = entry_of(key, token);
    if ((entry ^ digits) >> (shift + digit_bits) != 0) return;
    const uint bin = uint(entry >> shift) & (bins - 1);
    const ulong amount = measure == Measure::mass ? weights.mass(key) : 1UL;
    const uint low = uint(amount);
    uint high = uint(amount >> 32);
    const uint before = atomic_fetch_add_explicit(&ranking.low[bin], low, memory_order_relaxed);
    if (before + low < before) ++high;  // carried
    if (high != 0) atomic_fetch_add_explicit(&ranking.high[bin], high, memory_order_relaxed);
  }
};

struct Selected {
  ulong entry;    // its digits below those asked for are 0
  ulong through;  // what is counted of all entries from this one up
};

/// The largest entry for which the entries from it up come to `target`, which is above 0; the smallest one if
/// all of them do not.
template <Measure measure>
inline Selected select_entry(thread const Row& row,
                             uint digits,
                             ulong target,
                             thread const Ranking& ranking,
                             thread const Block& block) {
  Selected selected{0, 0};
  for (uint digit = 0; digit < digits; ++digit) {
    const uint shift = entry_bits - digit_bits * (digit + 1);
    atomic_store_explicit(&ranking.low[block.thread_index], 0U, memory_order_relaxed);
    atomic_store_explicit(&ranking.high[block.thread_index], 0U, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Tally<measure> tally{ranking, row.weights, selected.entry, shift};
    if (measure == Measure::peaks) {
      for (uint group = block.thread_index; group < groups; group += sample_threads) {
        if (row.peaks[group] != 0) tally(row.peaks[group], group);
      }
    } else {
      each_value(row, entry_key(selected.entry), tally, block);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    const uint bin = bins - 1 - block.thread_index;
    const uint low = atomic_load_explicit(&ranking.low[bin], memory_order_relaxed);
    const uint high = atomic_load_explicit(&ranking.high[bin], memory_order_relaxed);
    const Prefix sum = block_prefix(ulong(high) << 32 | low, block);
    if (digit == 0) target = min(target, sum.total);
    if (reaches(sum, target)) {
      block.found[0] = bin;
      block.found[1] = sum.before;
      block.found[2] = sum.through;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    selected.entry |= block.found[0] << shift;
    target -= block.found[1];
    // What the entries above this digit come to, and in the end with the entry itself.
    selected.through += digit + 1 < digits ? block.found[1] : block.found[2];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return selected;
}

/// Puts entries from `bound` up into the list, as long as there is room.
struct Gather {
  Ranking ranking;
  ulong bound;

  void operator()(uint key, uint token) {
    const ulong entry = entry_of(key, token);
    if (entry < bound) return;
    const uint place = atomic_fetch_add_explicit(ranking.size, 1U, memory_order_relaxed);
    if (place < list_size) ranking.list[place] = entry;
  }
};

/// The number of entries from `bound` up, which are in the list if it has room for all.
inline uint gather(thread const Row& row,
                   ulong bound,
                   thread const Ranking& ranking,
                   thread const Block& block) {
  if (block.thread_index == 0) atomic_store_explicit(ranking.size, 0U, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Gather visit{ranking, bound};
  each_value(row, entry_key(bound), visit, block);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return atomic_load_explicit(ranking.size, memory_order_relaxed);
}

/// Lists the most probable tokens in their order: `count` of them, or some more, or all there are. Returns
/// how many. count: at most list_size.
inline uint rank_largest(thread const Row& row,
                         uint count,
                         thread const Ranking& ranking,
                         thread const Block& block) {
  const ulong bound = select_entry<Measure::peaks>(row, bound_digits, count, ranking, block).entry;
  uint size = gather(row, bound, ranking, block);
  // Too many where values are equal, or large ones neighbours; too few where there are fewer groups than
  // that.
  if (size > list_size || size < min(count, row.count)) {
    const ulong exact = select_entry<Measure::tokens>(row, all_digits, count, ranking, block).entry;
    size = gather(row, exact, ranking, block);
  }
  // An entry's place is the number of larger ones: lists are short.
  const ulong entry = block.thread_index < size ? ranking.list[block.thread_index] : 0UL;
  uint place = 0;
  for (uint i = 0; i < size; ++i) place += ranking.list[i] > entry ? 1U : 0U;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (block.thread_index < size) ranking.list[place] = entry;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return size;
}

}  // namespace calla_kernels
