// What the threads of the second sampling kernel do together: they are one block. Every function ends with
// the block in step, and all threads get the result.
#pragma once
#include <cstdint>

#include "cuda/sample_values.cuh"

namespace calla::cuda {

inline constexpr int draw_threads = 512;
inline constexpr int draw_warps = draw_threads / 32;

/// The sums up to and with this thread's value, in a fixed order: `before` of a thread is `through` of the
/// one before it.
template <class T>
struct Prefix {
  T before;
  T through;
  T total;
};

template <class T>
__device__ Prefix<T> block_prefix(T value) {
  __shared__ T of_warp[draw_warps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  T through = value;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const T other = __shfl_up_sync(all_lanes, through, lanes);
    if (lane >= lanes) through = other + through;
  }
  T before = __shfl_up_sync(all_lanes, through, 1);
  if (lane == 0) before = 0;
  if (lane == 31) of_warp[warp] = through;
  __syncthreads();
  T start = 0;
  T total = 0;
#pragma unroll
  for (int w = 0; w < draw_warps; ++w) {
    if (w == warp) start = total;
    total += of_warp[w];
  }
  __syncthreads();
  return {start + before, start + through, total};
}

/// The sum of all threads' counts.
__device__ inline int block_sum(int count) {
  __shared__ unsigned of_warp[draw_warps];
  const unsigned sum = __reduce_add_sync(all_lanes, static_cast<unsigned>(count));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  const unsigned mine = threadIdx.x % 32 < draw_warps ? of_warp[threadIdx.x % 32] : 0;
  const unsigned total = __reduce_add_sync(all_lanes, mine);
  __syncthreads();
  return static_cast<int>(total);
}

/// The largest of all threads' keys.
__device__ inline std::uint32_t block_max(std::uint32_t key) {
  __shared__ std::uint32_t of_warp[draw_warps];
  const std::uint32_t largest = __reduce_max_sync(all_lanes, key);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  const std::uint32_t result = __reduce_max_sync(all_lanes, of_warp[threadIdx.x % draw_warps]);
  __syncthreads();
  return result;
}
__device__ inline std::uint64_t block_max(std::uint64_t entry) {
  const std::uint32_t high = block_max(static_cast<std::uint32_t>(entry >> 32));
  const std::uint32_t low = block_max(entry >> 32 == high ? static_cast<std::uint32_t>(entry) : 0);
  return std::uint64_t{high} << 32 | low;
}

/// The first of `count` sums, in ascending order, that reaches the target, or goes beyond it; else the last.
__device__ inline int first_reaching(const double* sums, int count, double target, bool beyond) {
  int below = 0;
#pragma unroll 1
  for (int base = 0; base < count; base += draw_threads) {
    const int i = base + static_cast<int>(threadIdx.x);
    below += __syncthreads_count(i < count && !(beyond ? sums[i] > target : sums[i] >= target));
  }
  return min(below, count - 1);
}

}  // namespace calla::cuda
