// PTX of the matrix products, one instruction a function: what every architecture from sm_80 on has.
#pragma once
#include <cstdint>

#include "cuda/ptx.cuh"
#include "cuda/shared_ptx.cuh"

namespace calla::cuda {

/// Starts a copy of 16 bytes from global to shared memory, past the first-level cache.
__device__ inline void copy16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// The same of 4 bytes.
__device__ inline void copy4(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/// An 8 x 8 matrix of half, transposed between the lanes of a warp.
__device__ inline std::uint32_t transpose_matrix(std::uint32_t m) {
  std::uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(m));
  return result;
}

/// Four 8 x 8 matrices of half, stored transposed; lane 8 m + r gives where column r of matrix m
/// goes. From sm_90 on.
__device__ inline void store_matrices_transposed(std::uint32_t column, std::uint32_t m0, std::uint32_t m1,
                                                 std::uint32_t m2, std::uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(column), "r"(m0),
               "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

__device__ inline void store_shared16(std::uint32_t to, int4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}
__device__ inline float2 load_shared_floats(std::uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
  return v;
}

/// Waits for all `threads` that call it with the same id; id 0 is __syncthreads's.
__device__ inline void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace calla::cuda
