// PTX of shared memory by its addresses, one instruction a function.
#pragma once
#include <cstdint>

namespace calla::cuda {

/// An address in shared memory as instructions take it.
__device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

__device__ inline void store_shared(std::uint32_t to, std::uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
__device__ inline uint2 load_shared8(std::uint32_t from) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
  return v;
}
/// 16 bytes.
__device__ inline uint4 load_shared(std::uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

/// Four 8 x 8 matrices of 16-bit elements: lanes 8 i .. 8 i + 7 give the rows of matrix i, 16 bytes each;
/// lane l receives the elements (l / 4, 2 (l % 4) ..+1) of each.
__device__ inline uint4 load_matrices(std::uint32_t row) {
  uint4 m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w)
               : "r"(row)
               : "memory");
  return m;
}

}  // namespace calla::cuda
