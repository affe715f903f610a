// What the threads of a threadgroup that samples a row do together. Every function ends with them in step,
// and all of them get the result.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/sample_arguments.h"

using namespace metal;

namespace calla_kernels {

enum : uint { sample_simds = sample_threads / 32 };

/// A thread's place, and what it shares with the others of its threadgroup.
struct Block {
  uint thread_index;
  uint simd;
  uint lane;
  threadgroup uint* maxima;  // [sample_simds]
  threadgroup ulong* sums;   // [sample_simds]
  threadgroup ulong* found;  // [3] what one thread has found for all
};

inline uint block_max(uint x, thread const Block& block) {
  const uint mine = simd_max(x);
  if (block.lane == 0) block.maxima[block.simd] = mine;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint result = simd_max(block.maxima[block.lane % sample_simds]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return result;
}

/// Values of neighbouring threads are added up in their order: `before` of one is `through` of the last.
struct Prefix {
  ulong before;
  ulong through;
  ulong total;
};

/// The sum of the values of all lanes up to this one. SIMD functions have no 64-bit operands.
inline ulong simd_prefix(ulong x, uint lane) {
  ulong through = x;
  for (ushort distance = 1; distance < 32; distance *= 2) {
    const uint low = simd_shuffle_up(uint(through), distance);
    const uint high = simd_shuffle_up(uint(through >> 32), distance);
    if (lane >= distance) through += ulong(high) << 32 | low;
  }
  return through;
}

inline Prefix block_prefix(ulong x, thread const Block& block) {
  const ulong through = simd_prefix(x, block.lane);
  if (block.lane == 31) block.sums[block.simd] = through;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ulong start = 0;
  ulong total = 0;
  for (uint s = 0; s < sample_simds; ++s) {
    if (s == block.simd) start = total;
    total += block.sums[s];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return Prefix{start + through - x, start + through, total};
}

/// Whether a running sum reaches a target with this thread's value. Of one thread it does, if the target is
/// above 0 and no more than the total.
inline bool reaches(Prefix sum, ulong target) { return sum.before < target && target <= sum.through; }

/// The value of the one thread that has found what all look for.
inline ulong block_pick(bool is_mine, ulong value, thread const Block& block) {
  if (is_mine) block.found[0] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const ulong result = block.found[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return result;
}

}  // namespace calla_kernels
