// The choice of a token by one number that is uniform in [0, 1): the first token, in the row's order, with
// which the running sum of weights goes beyond that share of all that are kept.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/sample_row.h"

using namespace metal;

namespace calla_kernels {

constant uint no_token = 0xffffffffU;

enum : uint { short_list = 64 };  // tried first where not top_k, but masses say how many are kept

inline Share top_p_share(device const SlotSampling& s) { return Share{s.top_p, 0U}; }

/// The most probable token, the lowest id among equals.
struct LowestId {
  uint peak;
  uint inverse;  // ~id; 0: none

  void operator()(uint key, uint token) {
    if (key == peak) inverse = max(inverse, ~token);
  }
};
inline uint most_probable(thread const Row& row, uint peak, thread const Block& block) {
  LowestId visit{peak, 0};
  each_value(row, peak, visit, block);
  return ~block_max(visit.inverse, block);
}

/// Among all tokens, by id: first the group, by the sums of its tokens' weights, then the token. A thread
/// looks after neighbouring groups.
inline uint draw_by_id(thread const Row& row,
                       device const float* peaks,
                       device const float* sums,
                       Share random,
                       thread const Block& block) {
  const uint first = block.thread_index * thread_groups;
  const uint end = min(first + thread_groups, (row.count + head_rows - 1) / head_rows);
  ulong mine = 0;
  for (uint g = first; g < end; ++g) mine += group_mass(peaks[g], sums[g], row.weights);
  const Prefix mass = block_prefix(mine, block);
  const ulong target = share_of(mass.total, random) + 1;
  uint chosen = 0;
  ulong rest = 0;  // of the target, within the group
  const bool is_mine = reaches(mass, target);
  if (is_mine) {
    ulong before = mass.before;
    for (uint g = first; g < end; ++g) {
      const ulong of_group = group_mass(peaks[g], sums[g], row.weights);
      if (before < target && target <= before + of_group) {
        chosen = g;
        rest = target - before;
      }
      before += of_group;
    }
  }
  chosen = uint(block_pick(is_mine, chosen, block));
  rest = block_pick(is_mine, rest, block);

  uint found = 0;  // id + 1
  if (block.simd == 0) {
    const uint token = chosen * head_rows + 2 * block.lane;
    const uint key0 = token < row.count ? order_key(row.values[token]) : 0U;
    const uint key1 = token + 1 < row.count ? order_key(row.values[token + 1]) : 0U;
    const ulong mass0 = key0 != 0 ? row.weights.mass(key0) : 0UL;
    const ulong mass1 = key1 != 0 ? row.weights.mass(key1) : 0UL;
    const ulong through = simd_prefix(mass0 + mass1, block.lane);
    const ulong before = through - (mass0 + mass1);
    if (before < rest && rest <= through) found = token + (rest <= before + mass0 ? 1U : 2U);
    found = simd_max(found);
    // The tokens' weights may come to a little less than the group's: then the last one that has a weight, or
    // the group's peak.
    const uint peak = simd_max(max(key0, key1));
    uint last = 0;
    if (mass0 > 0 || key0 == peak) last = token + 1;
    if (mass1 > 0 || key1 == peak) last = token + 2;
    last = simd_max(last);
    if (found == 0) found = last;
  }
  return uint(block_pick(block.thread_index == 0, found, block)) - 1;
}

/// Among the most probable tokens, from a list; no_token where no list has all that are kept. all: the mass
/// of all tokens, used where top_k is off.
inline uint draw_listed(thread const Row& row,
                        device const SlotSampling& s,
                        ulong all,
                        Share random,
                        thread const Ranking& ranking,
                        thread const Block& block) {
  const uint top_k = s.top_k;
  for (uint size = top_k > 0 ? top_k : uint(short_list); size <= list_size; size = list_size) {
    const uint listed = rank_largest(row, size, ranking, block);
    const uint count = top_k > 0 ? min(top_k, listed) : listed;
    const bool is_listed = block.thread_index < count;
    const ulong entry = is_listed ? ranking.list[block.thread_index] : 0UL;
    const uint key = entry_key(entry);
    const Prefix mass = block_prefix(is_listed ? row.weights.mass(key) : 0UL, block);
    const bool common = is_listed && is_common(key_value(key), row.weights.peak, s);
    const uint commons = block_max(common ? block.thread_index + 1 : 0U, block);

    ulong reach = mass.total;
    bool is_settled = top_k > 0 || commons < count;
    if ((s.use & use_top_p) != 0) {
      reach = max(share_of(top_k > 0 ? mass.total : all, top_p_share(s)), 1UL);
      is_settled = is_settled || reach <= mass.total;
      reach = min(reach, mass.total);
    }
    if (is_settled) {
      const ulong by_mass = block_pick(reaches(mass, reach), mass.through, block);
      const ulong by_weight = block_pick(block.thread_index + 1 == max(commons, 1U), mass.through, block);
      const ulong target = share_of(min(by_mass, by_weight), random) + 1;
      return uint(block_pick(reaches(mass, target), entry_token(entry), block));
    }
    if (size == list_size) break;
  }
  return no_token;
}

/// Adds up the weights of tokens from `bound` up; of those that min_p keeps, if it is to look at that.
struct Sum {
  ulong bound;
  bool only_common;
  Weights weights;
  device const SlotSampling* sampling;
  ulong mass;

  void operator()(uint key, uint token) {
    if (entry_of(key, token) < bound) return;
    if (only_common && !is_common(key_value(key), weights.peak, *sampling)) return;
    mass += weights.mass(key);
  }
};
inline ulong mass_from(thread const Row& row,
                       ulong bound,
                       bool only_common,
                       device const SlotSampling& s,
                       thread const Block& block) {
  Sum visit{bound, only_common, row.weights, &s, 0};
  each_value(row, entry_key(bound), visit, block);
  return block_prefix(visit.mass, block).total;
}

/// The same for any number of tokens: each cut, and then the draw, is a selection among all of them. Every
/// step of it reads the row again, some twenty times in all.
inline uint draw_deep(thread const Row& row,
                      device const SlotSampling& s,
                      Share random,
                      thread const Ranking& ranking,
                      thread const Block& block) {
  ulong bound = 0;
  if (s.top_k > 0) bound = select_entry<Measure::tokens>(row, all_digits, s.top_k, ranking, block).entry;
  ulong kept = mass_from(row, bound, false, s, block);
  if ((s.use & use_top_p) != 0) {
    const ulong reach = max(share_of(kept, top_p_share(s)), 1UL);
    kept = select_entry<Measure::mass>(row, all_digits, reach, ranking, block).through;
  }
  if ((s.use & use_min_p) != 0) kept = min(kept, mass_from(row, 0, true, s, block));
  return entry_token(
      select_entry<Measure::mass>(row, all_digits, share_of(kept, random) + 1, ranking, block).entry);
}

}  // namespace calla_kernels
