// Two kernels. The first chooses: a warp has a token, a lane every 32nd expert; eight times the warp finds
// its largest logit. A block of 64 tokens counts who goes where. The second places: a stable counting sort by
// expert, in which a route's place is the number of routes of smaller experts, plus the number of earlier
// tokens with the same expert. Counts are integers, so atomics do not disturb the order of anything.
// Bytes: a token's logits, and 64 B a route set; both kernels are bound by latency.
#include "cuda/carver.h"
#include "cuda/device.h"
#include "cuda/routing.h"

namespace calla::cuda {
namespace {

constexpr int top = Shape::experts_per_token;
constexpr int block_tokens = 64;
constexpr int choose_threads = 512;
constexpr int threads = 256;  // of the second kernel: one for an expert

/// An unsigned number above 0 that is ordered like the float; -0 is as 0, and what is not a number is
/// smallest.
__device__ inline std::uint32_t ordered(float value) {
  if (isnan(value)) return 1;
  const std::uint32_t bits = __float_as_uint(value + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

__device__ inline std::uint32_t warp_max(std::uint32_t value) { return __reduce_max_sync(~0U, value); }
__device__ inline int warp_min(int value) { return __reduce_min_sync(~0U, value); }

template <int experts>
__global__ void __launch_bounds__(choose_threads)
    choose_kernel(const float* logits, int tokens, Routes routes) {
  constexpr int held = experts / 32;  // by a lane
  __shared__ int counts[experts];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += choose_threads) counts[e] = 0;
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) * block_tokens;
  const int last = min(first + block_tokens, tokens);
  for (int token = first + static_cast<int>(threadIdx.x) / 32; token < last; token += choose_threads / 32) {
    const float* row = logits + static_cast<std::size_t>(token) * (experts + 1);
    std::uint32_t keys[held];
#pragma unroll
    for (int i = 0; i < held; ++i) keys[i] = ordered(row[32 * i + lane]);

    int chosen = experts;  // lane i < 8 keeps the i-th largest
#pragma unroll
    for (int rank = 0; rank < top; ++rank) {
      std::uint32_t best = 0;
#pragma unroll
      for (int i = 0; i < held; ++i) best = max(best, keys[i]);
      const std::uint32_t largest = warp_max(best);
      int expert = experts;
#pragma unroll
      for (int i = held - 1; i >= 0; --i) {
        if (keys[i] == largest) expert = 32 * i + lane;
      }
      expert = warp_min(expert);
#pragma unroll
      for (int i = 0; i < held; ++i) {
        if (32 * i + lane == expert) keys[i] = 0;  // below all others
      }
      if (lane == rank) chosen = expert;
    }

    // Softmax over the eight, summed from the largest on.
    const float logit = lane < top ? row[chosen] : 0;
    const float weight = expf(logit - __shfl_sync(~0U, logit, 0));
    float total = 0;
    int place = 0;  // in ascending order of experts
#pragma unroll
    for (int i = 0; i < top; ++i) {
      total += __shfl_sync(~0U, weight, i);
      place += __shfl_sync(~0U, chosen, i) < chosen ? 1 : 0;
    }
    if (lane < top) {
      const std::size_t at = static_cast<std::size_t>(token) * top + static_cast<std::size_t>(place);
      routes.experts[at] = chosen;
      routes.shares[at] = weight / total;
      atomicAdd(&counts[chosen], 1);
    }
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += choose_threads)
    routes.counts[static_cast<std::size_t>(blockIdx.x) * experts + e] = counts[e];
}

/// The sum of the values of the threads before this one; all of the block's `threads` must call it.
__device__ int sum_before(int value, int* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int sum = value;
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const int other = __shfl_up_sync(~0U, sum, static_cast<unsigned>(apart));
    if (lane >= apart) sum += other;
  }
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += scratch[w];
  __syncthreads();
  return sum - value;
}

template <int experts>
__global__ void __launch_bounds__(threads) place_kernel(int tokens, Routes routes) {
  static_assert(experts <= threads && block_tokens == 64);
  __shared__ int scratch[threads / 32];
  __shared__ int begin[experts];               // where this block's routes to an expert begin
  __shared__ unsigned long long who[experts];  // which of the 64 tokens go to it
  const int thread = static_cast<int>(threadIdx.x);
  const int block = static_cast<int>(blockIdx.x);

  int before = 0;  // routes to expert `thread` of earlier blocks
  int total = 0;   // and of all
  if (thread < experts) {
    who[thread] = 0;
#pragma unroll 16
    for (int b = 0; b < static_cast<int>(gridDim.x); ++b) {
      const int count = routes.counts[static_cast<std::size_t>(b) * experts + thread];
      total += count;
      before += b < block ? count : 0;
    }
  }
  const int expert_begin = sum_before(total, scratch);
  if (thread < experts) begin[thread] = expert_begin + before;
  __syncthreads();

  const std::size_t first_route = static_cast<std::size_t>(block) * block_tokens * top;
  const int here = min(block_tokens, tokens - block * block_tokens) * top;
  for (int i = thread; i < here; i += threads)
    atomicOr(&who[routes.experts[first_route + i]], 1ULL << (i / top));
  __syncthreads();
  for (int i = thread; i < here; i += threads) {
    const int expert = routes.experts[first_route + i];
    const int at = begin[expert] + __popcll(who[expert] & ((1ULL << (i / top)) - 1));
    routes.positions[first_route + i] = at;
    routes.tokens[at] = block * block_tokens + i / top;
  }

  if (block == 0) {
    const int share = tokens_of_tile(total, token_tile);
    const int tiles = total == 0 ? 0 : (total + share - 1) / share;
    const int first_tile = sum_before(tiles, scratch);
    for (int i = 0; i < tiles; ++i) {
      routes.tiles[first_tile + i] = {
          .expert = thread, .first = expert_begin + i * share, .count = min(share, total - i * share)};
    }
    if (thread == threads - 1) *routes.tile_count = first_tile + tiles;
    if (thread < 2) routes.queue[thread] = 0;
  }
}

template <int experts>
void launch(const float* logits, int tokens, const Routes& routes, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((tokens + block_tokens - 1) / block_tokens);
  choose_kernel<experts><<<blocks, choose_threads, 0, stream>>>(logits, tokens, routes);
  check(cudaGetLastError(), "launching the choice of experts");
  place_kernel<experts><<<blocks, threads, 0, stream>>>(tokens, routes);
  check(cudaGetLastError(), "launching the ordering of routes");
}

Routes carve(Carver& carver, int tokens, int experts) {
  const std::size_t count = static_cast<std::size_t>(tokens) * top;
  Routes routes;
  carver.take(routes.experts, count);
  carver.take(routes.shares, count);
  carver.take(routes.positions, count);
  carver.take(routes.tokens, count);
  carver.take(routes.tiles, static_cast<std::size_t>(max_route_tiles(tokens * top, experts)));
  carver.take(routes.tile_count, 1);
  carver.take(routes.queue, 2);
  carver.take(routes.counts, static_cast<std::size_t>((tokens + block_tokens - 1) / block_tokens * experts));
  return routes;
}

}  // namespace

std::size_t routes_bytes(int tokens, int experts) {
  Carver carver(nullptr);
  carve(carver, tokens, experts);
  return carver.used();
}

Routes carve_routes(std::byte* memory, int tokens, int experts) {
  Carver carver(memory);
  return carve(carver, tokens, experts);
}

void route(const float* logits, int tokens, int experts, const Routes& routes, cudaStream_t stream) {
  if (experts == qwen36_35b.experts) {
    launch<qwen36_35b.experts>(logits, tokens, routes, stream);
  } else {
    launch<demo.experts>(logits, tokens, routes, stream);
  }
}

}  // namespace calla::cuda
