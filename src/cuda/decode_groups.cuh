// Which rows of a step go to which expert: one block lists it for all others.
#pragma once
#include <cstdint>

#include "cuda/decode.h"
#include "cuda/decode_choice.cuh"
#include "cuda/linear.cuh"

namespace calla::cuda {

/// What the block that lists them, a warp a row, has in shared memory.
template <int Experts>
struct GroupScratch {
  static constexpr int threads = most_rows * warp_threads;
  static_assert(Experts % warp_threads == 0 && Experts <= threads, "a thread has an expert");
  static constexpr int expert_warps = Experts / warp_threads;
  Choice chosen[most_rows];
  unsigned long long candidates[most_rows][Experts];
  unsigned rows_of[Experts];  // bit r: row r
  std::uint8_t pick_of[Experts][most_rows];
  int counts[expert_warps];
};

/// A warp chooses the experts of a row as a block does it (decode_experts.cu): the eighth largest logit is
/// not below the least of the largest of eight parts, and of the few that are not below that either, each
/// counts those that come before it.
template <int Experts>
__device__ void choose_by_warp(const unsigned (&ordered)[Experts / warp_threads],
                               unsigned long long (&candidates)[Experts], Choice& chosen) {
  constexpr int parts = Experts / warp_threads;
  unsigned bound = 0;
  if constexpr (parts >= top) {
    bound = ~0U;
#pragma unroll
    for (const unsigned mine : ordered) bound = min(bound, __reduce_max_sync(0xFFFFFFFFU, mine));
  }
  int count = 0;
#pragma unroll
  for (int i = 0; i < parts; ++i) {
    const bool candidate = ordered[i] >= bound;
    const unsigned of_part = __ballot_sync(0xFFFFFFFFU, candidate);
    if (candidate) {
      candidates[count + __popc(of_part & ((1U << lane_id()) - 1U))] =
          ranked(ordered[i], i * warp_threads + lane_id());
    }
    count += __popc(of_part);
  }
  __syncwarp();
  for (int at = lane_id(); at < count; at += warp_threads) {
    const unsigned long long mine = candidates[at];
    int rank = 0;
#pragma unroll 8
    for (int i = 0; i < count; ++i) rank += candidates[i] > mine ? 1 : 0;
    if (rank >= top) continue;
    chosen.experts[rank] = ranked_expert(mine);
    chosen.logits[rank] = ranked_logit(mine);
  }
  __syncwarp();
}

/// A warp chooses for a row, then a thread puts together the rows of an expert. Rows that do not run go to
/// none. By a whole block.
template <int Experts>
__device__ void list_groups(const DecodeState& state, int rows, GroupScratch<Experts>& scratch,
                            Groups& groups) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = warp_id();
  if (thread < Experts) scratch.rows_of[thread] = 0;
  // All that a warp will ask for is on its way at once.
  const int read = min(warp, rows - 1);  // rows behind the last are read as the last
  const int slot = state.slots[read];
  const int active = state.active[read];
  unsigned ordered[Experts / warp_threads];
#pragma unroll
  for (int p = 0; p < Experts / warp_threads; ++p)
    ordered[p] = ordered_bits(__ldcg(state.router + read * (Experts + 1) + p * warp_threads + lane_id()));
  __syncthreads();
  if (const int row = warp; row < rows && slot >= 0 && active != 0) {
    choose_by_warp<Experts>(ordered, scratch.candidates[row], scratch.chosen[row]);
    if (lane_id() < top) {
      const int pick = row * top + lane_id();
      const int expert = scratch.chosen[row].experts[lane_id()];
      scratch.pick_of[expert][row] = static_cast<std::uint8_t>(pick);
      atomicOr(&scratch.rows_of[expert], 1U << row);
      groups.shares[pick] = share_of(scratch.chosen[row], lane_id());
    }
  }
  __syncthreads();
  unsigned mine = thread < Experts ? scratch.rows_of[thread] : 0;
  const int count = (__popc(mine) + group_rows - 1) / group_rows;
  int end = count;  // of this expert's groups, among those of the warp
#pragma unroll
  for (int distance = 1; distance < warp_threads; distance *= 2) {
    const int before = __shfl_up_sync(0xFFFFFFFFU, end, distance);
    if (lane_id() >= distance) end += before;
  }
  constexpr int expert_warps = GroupScratch<Experts>::expert_warps;
  if (warp < expert_warps && lane_id() == warp_threads - 1) scratch.counts[warp] = end;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < expert_warps; ++w) {
    if (w < warp) end += scratch.counts[w];
  }
  for (int at = end - count; mine != 0; ++at) {
    ExpertGroup group{static_cast<std::uint16_t>(thread), 0, {}};
#pragma unroll
    for (std::uint8_t& pick : group.picks) {
      if (mine == 0) continue;
      pick = scratch.pick_of[thread][__ffs(static_cast<int>(mine)) - 1];
      mine &= mine - 1;
      ++group.count;
    }
    groups.of[at] = group;
  }
  if (thread == Experts - 1) groups.count = end;
}

/// Brings the list into shared memory, by a whole block, which must meet afterwards.
__device__ inline void fetch_groups(Groups& to, const Groups* from) {
  constexpr int pieces = sizeof(Groups) / sizeof(int4);
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += static_cast<int>(blockDim.x))
    reinterpret_cast<int4*>(&to)[i] = __ldcg(reinterpret_cast<const int4*>(from) + i);
}

}  // namespace calla::cuda
