// The choice of the experts of decode, and their shares. A row's eight are found by a block, or one of them
// by a warp; decode_groups.cuh finds those of all rows.
#pragma once
#include <cuda_runtime.h>

#include "cuda/linear.cuh"
#include "cuda/ptx.cuh"
#include "model/shape.h"

namespace calla::cuda {

constexpr int top = Shape::experts_per_token;

// A row of router tiles is two: the low and the high halves of the codes.
constexpr int router_planes = 2;

/// The chosen experts, largest logit first, the lower id first among equals.
struct Choice {
  int experts[top];
  float logits[top];
};

/// A logit's bits as a number that is the larger the larger the logit is.
__device__ inline unsigned ordered_bits(float logit) {
  const unsigned bits = __float_as_uint(logit);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// With its expert, a number that is the larger the earlier it is chosen.
__device__ inline unsigned long long ranked(unsigned ordered, int expert) {
  return static_cast<unsigned long long>(ordered) << 32U | ~static_cast<unsigned>(expert);
}
__device__ inline int ranked_expert(unsigned long long key) {
  return static_cast<int>(~static_cast<unsigned>(key));
}
__device__ inline float ranked_logit(unsigned long long key) {
  const auto ordered = static_cast<unsigned>(key >> 32U);
  return __uint_as_float((ordered & 0x80000000U) != 0 ? ordered ^ 0x80000000U : ~ordered);
}

/// The softmax over the chosen, of one. Its sums are not contracted, whatever the kernel.
__device__ inline float share_of(const Choice& chosen, int place) {
  float total = 0;
#pragma unroll
  for (const float logit : chosen.logits) total = __fadd_rn(total, expf(logit - chosen.logits[0]));
  return expf(chosen.logits[place] - chosen.logits[0]) / total;
}

constexpr int most_experts = 256;
constexpr int candidate_step = 8;  // that are looked at together

struct ChoiceShared {
  Choice chosen;
  unsigned peaks[warp_threads];
  int counts[warp_threads];
  unsigned long long candidates[most_experts + candidate_step];
};

/// Chooses the experts of a row, by a whole block whose threads have a logit each. The eighth largest is not
/// below the least of the warps' largest: of the few that are not below that either, each counts those that
/// come before it.
template <int Experts>
__device__ const Choice& choose(float mine, ChoiceShared& shared) {
  constexpr int groups = Experts / warp_threads;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < top) shared.chosen.experts[thread] = 0;  // in case a logit is not a number
  const unsigned ordered = thread < Experts ? ordered_bits(mine) : 0;
  const unsigned peak = max_of_warp(ordered);
  if (lane_id() == 0) shared.peaks[warp_id()] = peak;
  __syncthreads();
  unsigned bound = 0;
  if constexpr (groups >= top) {
    bound = shared.peaks[0];
#pragma unroll
    for (int group = 1; group < groups; ++group) bound = min(bound, shared.peaks[group]);
  }
  const bool candidate = thread < Experts && ordered >= bound;
  const unsigned candidates = __ballot_sync(0xFFFFFFFFU, candidate);
  if (lane_id() == 0) shared.counts[warp_id()] = __popc(candidates);
  __syncthreads();
  int before = 0;
  int count = 0;
#pragma unroll
  for (int group = 0; group < groups; ++group) {
    const int of_group = shared.counts[group];
    if (group < warp_id()) before += of_group;
    count += of_group;
  }
  const unsigned long long key = ranked(ordered, thread);
  if (candidate) shared.candidates[before + __popc(candidates & ((1U << lane_id()) - 1U))] = key;
  if (thread < candidate_step) shared.candidates[count + thread] = 0;
  __syncthreads();
  if (candidate) {
    int rank = 0;
    for (int first = 0; first < count; first += candidate_step) {
#pragma unroll
      for (int i = 0; i < candidate_step; ++i) rank += shared.candidates[first + i] > key ? 1 : 0;
    }
    if (rank < top) {
      shared.chosen.experts[rank] = thread;
      shared.chosen.logits[rank] = mine;
    }
  }
  __syncthreads();
  return shared.chosen;
}

/// The expert at a place in the order of the chosen, by one warp.
template <int Experts>
__device__ int choose_one(const float* logits, int place) {
  constexpr int each = Experts / warp_threads;
  const int lane = lane_id();
  unsigned mine[each];  // of experts lane, lane + 32, ...; 0: taken
#pragma unroll
  for (int i = 0; i < each; ++i) mine[i] = ordered_bits(logits[i * warp_threads + lane]);
  for (int round = 0;; ++round) {
    unsigned largest = mine[0];
#pragma unroll
    for (int i = 1; i < each; ++i) largest = max(largest, mine[i]);
    const unsigned peak = max_of_warp(largest);
    unsigned expert = Experts - 1;
#pragma unroll
    for (int i = each - 1; i >= 0; --i) {
      if (mine[i] == peak) expert = i * warp_threads + lane;
    }
    const unsigned holders = __ballot_sync(0xFFFFFFFFU, largest == peak);
    if (__popc(holders) > 1) {  // the first among equals
      expert = min_of_warp(expert);
    } else if (round == place) {
      expert = __shfl_sync(0xFFFFFFFFU, expert, __ffs(static_cast<int>(holders)) - 1);
    }
    if (round == place) return static_cast<int>(expert);
#pragma unroll
    for (int i = 0; i < each; ++i) {
      if (largest == peak && expert == i * warp_threads + lane) mine[i] = 0;
    }
  }
}

}  // namespace calla::cuda
