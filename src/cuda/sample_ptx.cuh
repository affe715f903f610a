// PTX, one instruction a function: stores that the host sees while the kernel runs.
#pragma once
#include <cstdint>

namespace calla::cuda {

/// At once, in no order with other stores.
__device__ inline void store_system(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/// After all stores that this thread has made or seen through a barrier.
__device__ inline void release_system(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

}  // namespace calla::cuda
