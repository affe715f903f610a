// PTX of the mixers, one instruction a function.
#pragma once
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/shared_ptx.cuh"

namespace calla::cuda {

/// The same, each matrix transposed.
__device__ inline uint4 load_matrices_transposed(std::uint32_t row) {
  uint4 m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w)
               : "r"(row)
               : "memory");
  return m;
}

__device__ inline void store_shared8(std::uint32_t to, uint2 words) {
  asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(to), "r"(words.x), "r"(words.y) : "memory");
}
__device__ inline float load_shared_float(std::uint32_t from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
  return v;
}

/// Starts a copy of 16 bytes from global to shared memory; `bytes` 0 writes zeros and reads nothing.
__device__ inline void copy_async(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// Waits for all copies of this thread.
__device__ inline void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `groups` of this thread's youngest groups of copies are in flight.
template <int groups>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

/// Asks for a line of global memory to be brought into the second-level cache.
__device__ inline void prefetch_l2(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

/// 2^x, error 2^-22.
__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x, error 2^-23.
__device__ inline float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace calla::cuda
