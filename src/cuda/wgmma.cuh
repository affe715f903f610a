// PTX of Hopper, one instruction a function: the matrix instruction of a warpgroup. Only for code that is
// compiled for sm_90a.
#pragma once
#include <cstdint>

#include "cuda/bulk_copy.cuh"

namespace calla::cuda {

/// Starts to bring a line of 128 bytes into the second-level cache.
__device__ inline void prefetch_line(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

/// Orders earlier accesses to shared memory by threads before later ones by the asynchronous proxy.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- Registers ---

template <int count>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// --- The product ---

/// Orders accesses to registers before the products that follow.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Ends a group of products.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `pending` groups of products are under way.
template <int pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Describes B to the instruction: rows (columns of B) of 128 bytes, their eight 16-byte pieces exchanged by
/// XOR with the row's number mod 8, at an address that is a multiple of 1024. The 16 columns of k that are 32
/// j bytes into the rows: add 2 j.
__device__ inline std::uint64_t describe_rows128(std::uint32_t address) {
  constexpr std::uint64_t swizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t bytes_of_8_rows = std::uint64_t{1024 >> 4} << 32;
  return swizzle128 | bytes_of_8_rows | (std::uint64_t{1} << 16) | ((address & 0x3FFFFU) >> 4);
}

/// D += A B: A 64 x 16 in registers, each warp 16 rows in the fragment of m16n8k16; B 16
/// x n in shared memory; D 64 x n float, each warp 16 rows, d[j] the fragment of columns 8 j .. 8 j + 7 (of
/// 128; those from n on stay). Asynchronous: until it has been waited for, neither d nor a may be touched.
template <int n>
__device__ void wgmma(float (&d)[16][4], const std::uint32_t (&a)[4], std::uint64_t b);

// The operands of D, eight fragments (32 registers) at a time.
#define CALLA_D1(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define CALLA_D4(j) CALLA_D1(j), CALLA_D1(j + 1), CALLA_D1(j + 2), CALLA_D1(j + 3)
#define CALLA_NAMES_4 "%0,%1,%2,%3"
#define CALLA_NAMES_8 CALLA_NAMES_4 ",%4,%5,%6,%7"
#define CALLA_NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define CALLA_NAMES_32 CALLA_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CALLA_NAMES_48 CALLA_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define CALLA_NAMES_64 CALLA_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

#define CALLA_WGMMA(n, names, a0, a1, a2, a3, b_name, ...)                                             \
  template <>                                                                                          \
  __device__ inline void wgmma<n>(float(&d)[16][4], const std::uint32_t(&a)[4], std::uint64_t b) {     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" names "}, {%" #a0 ",%" #a1 \
                 ",%" #a2 ",%" #a3 "}, %" #b_name ", 1, 1, 1, 0;"                                      \
                 : __VA_ARGS__                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                \
  }
CALLA_WGMMA(8, CALLA_NAMES_4, 4, 5, 6, 7, 8, CALLA_D1(0))
CALLA_WGMMA(16, CALLA_NAMES_8, 8, 9, 10, 11, 12, CALLA_D1(0), CALLA_D1(1))
CALLA_WGMMA(32, CALLA_NAMES_16, 16, 17, 18, 19, 20, CALLA_D4(0))
CALLA_WGMMA(64, CALLA_NAMES_32, 32, 33, 34, 35, 36, CALLA_D4(0), CALLA_D4(4))
CALLA_WGMMA(96, CALLA_NAMES_48, 48, 49, 50, 51, 52, CALLA_D4(0), CALLA_D4(4), CALLA_D4(8))
CALLA_WGMMA(128, CALLA_NAMES_64, 64, 65, 66, 67, 68, CALLA_D4(0), CALLA_D4(4), CALLA_D4(8), CALLA_D4(12))
#undef CALLA_WGMMA
#undef CALLA_NAMES_64
#undef CALLA_NAMES_48
#undef CALLA_NAMES_32
#undef CALLA_NAMES_16
#undef CALLA_NAMES_8
#undef CALLA_NAMES_4
#undef CALLA_D4
#undef CALLA_D1

}  // namespace calla::cuda
