// Tiles of weights on their way into shared memory.
#pragma once
#include "cuda/bulk_copy.cuh"
#include "cuda/linear.cuh"
#include "cuda/ptx.cuh"
#include "cuda/shared_ptx.cuh"

namespace calla::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool bulk_copies = true;
#else
inline constexpr bool bulk_copies = false;
#endif

/// `Stages` rows of `Parts` parts of G tiles, each filled once. On Hopper one thread, the leader, asks for a
/// row with a bulk copy, which keeps the block's own loads and its access to shared memory free; before,
/// every warp copies its part by 16 bytes a thread.
template <int Stages, int Parts, int G>
struct StagedTiles {
  StagedPart<G> parts[Stages][Parts];
  std::uint64_t arrived[Stages];

  /// Before the first start(), by the leader too; all who wait() meet in between.
  __device__ void prepare([[maybe_unused]] bool leader) {
    if constexpr (bulk_copies) {
      if (!leader) return;
#pragma unroll
      for (int stage = 0; stage < Stages; ++stage) barrier_init(shared_address(&arrived[stage]), 1);
      barrier_init_fence();
    }
  }
  /// All stages in ascending order, by all warps, each with its part (on Hopper the leader is enough); `from`
  /// null: nothing comes.
  __device__ void start(int stage, const std::byte* from, [[maybe_unused]] int part,
                        [[maybe_unused]] bool leader) {
    if constexpr (bulk_copies) {
      if (!leader || from == nullptr) return;
      constexpr auto bytes = static_cast<std::uint32_t>(sizeof parts[0]);
      const std::uint32_t barrier = shared_address(&arrived[stage]);
      barrier_expect(barrier, bytes);
      bulk_copy(shared_address(parts[stage]), from, bytes, barrier);
    } else {
      if (from != nullptr) parts[stage][part].copy(from + part * G * tile_bytes);
      commit_copies();
    }
  }
  /// Until the warp's part of a stage is there.
  __device__ void wait(int stage) {
    if constexpr (bulk_copies) {
      while (!barrier_try_wait(shared_address(&arrived[stage]), 0)) {
      }
    } else {
      wait_pending(Stages - 1 - stage);
      __syncwarp();
    }
  }

 private:
  template <int pending = 0>
  __device__ static void wait_pending(int count) {
    if (count == pending) {
      wait_for_copies<pending>();
    } else if constexpr (pending + 1 < Stages) {
      wait_pending<pending + 1>(count);
    }
  }
};

}  // namespace calla::cuda
