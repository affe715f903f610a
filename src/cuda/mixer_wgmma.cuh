// Hopper's matrix instruction as attention prefill needs it, one instruction a function; its barriers are in
// bulk_copy.cuh, its fences in wgmma.cuh. Only for code that is compiled for sm_90a.
//
// An operand in shared memory is panels of 64 columns: rows of 128 bytes, their eight 16-byte pieces
// exchanged by XOR with the row's number mod 8, at an address that is a multiple of 1024.
#pragma once
#include <cstdint>

#include "cuda/bulk_copy.cuh"

namespace calla::cuda {

/// Describes an operand whose k runs along the rows: A [64][k] or B [n][k]. 16 columns further: add 2.
__device__ inline std::uint64_t describe_along_rows(std::uint32_t address) {
  constexpr std::uint64_t swizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t eight_rows = std::uint64_t{1024 >> 4} << 32;
  return swizzle128 | eight_rows | std::uint64_t{1} << 16 | (address & 0x3FFFFU) >> 4;
}

/// Describes B [k][n], k down the rows, its panels `panel_bytes` apart. 16 rows further: add 128.
template <int panel_bytes>
__device__ inline std::uint64_t describe_down_rows(std::uint32_t address) {
  constexpr std::uint64_t swizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t eight_rows = std::uint64_t{1024 >> 4} << 32;
  return swizzle128 | eight_rows | std::uint64_t{panel_bytes >> 4} << 16 | (address & 0x3FFFFU) >> 4;
}

/// Describes B [k][32] of half, k down rows of 64 bytes, their four 16-byte pieces exchanged by XOR with bits
/// 1 and 2 of the row's number. 16 rows further: add 64.
__device__ inline std::uint64_t describe_down_short_rows(std::uint32_t address) {
  constexpr std::uint64_t swizzle64 = std::uint64_t{2} << 62;
  constexpr std::uint64_t eight_rows = std::uint64_t{512 >> 4} << 32;
  return swizzle64 | eight_rows | std::uint64_t{1} << 16 | (address & 0x3FFFFU) >> 4;
}

// The operands of D, [8 columns][4] a lane.
#define CALLA_D1(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define CALLA_D8(j)                                                                                 \
  CALLA_D1(j), CALLA_D1(j + 1), CALLA_D1(j + 2), CALLA_D1(j + 3), CALLA_D1(j + 4), CALLA_D1(j + 5), \
      CALLA_D1(j + 6), CALLA_D1(j + 7)
#define CALLA_NAMES_0_31                                                                                   \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
  "%28,%29,%30,%31"
#define CALLA_NAMES_32_127                                                                                 \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"   \
  "%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,"   \
  "%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105," \
  "%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,"   \
  "%126,%127"

/// D = A B, or D += A B with `add`: A 64 x 16 and B 16 x 64 bfloat16 in shared memory, k along the rows of
/// both; D float, each warp 16 rows. Asynchronous: D must not be touched until it has been waited for.
__device__ inline void wgmma_64x64(float (&d)[8][4], std::uint64_t a, std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" CALLA_NAMES_0_31
      "}, %32, %33, p, 1, 1, 0, 0;\n}"
      : CALLA_D8(0)
      : "l"(a), "l"(b), "r"(add));
}

/// D += A B: A 64 x 16 bfloat16 in registers, each warp 16 rows in the fragment of m16n8k16; B 16 x 256 in
/// shared memory, k down its rows. Asynchronous: neither D nor A may be touched until it has been waited for.
__device__ inline void wgmma_64x256(float (&d)[32][4], const uint4& a, std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" CALLA_NAMES_0_31 "," CALLA_NAMES_32_127
      "}, {%128,%129,%130,%131}, %132, p, 1, 1, 1;\n}"
      : CALLA_D8(0), CALLA_D8(8), CALLA_D8(16), CALLA_D8(24)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b));
}

/// D = A B, or D += A B with `add`: A 64 x 16 half in registers, B 16 x 32 in shared memory, k down its rows.
/// Asynchronous like the others.
__device__ inline void wgmma_64x32(float (&d)[4][4], const uint4& a, std::uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
      "{%16,%17,%18,%19}, %20, p, 1, 1, 1;\n}"
      : CALLA_D1(0), CALLA_D1(1), CALLA_D1(2), CALLA_D1(3)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add));
}

#undef CALLA_D1
#undef CALLA_D8
#undef CALLA_NAMES_0_31
#undef CALLA_NAMES_32_127

/// Keeps the compiler from moving accesses to accumulators across: after a wait, before their use.
template <int tiles>
__device__ inline void accumulators_arrived(float (&d)[tiles][4]) {
#pragma unroll
  for (int j = 0; j < tiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[j][i])::"memory");
  }
}

/// Waits for the other threads of a group of warps that has barrier `id` (1 .. 15).
__device__ inline void barrier_of_warps(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- Clusters ---

/// Waits for all threads of the cluster; what they have written to shared memory is visible.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// Arrives at the barrier that lies at the same place in another block of the cluster. Orders this block's
/// accesses to shared memory only: at the cluster's scope it would wait for writes to global memory, too.
__device__ inline void barrier_arrive_remote(std::uint32_t barrier, int block) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(block)
      : "memory");
}
/// Starts a copy of `bytes` (a multiple of 16) from global memory to the same place in the shared memory of
/// each block in the mask; each block's barrier at this place counts them.
__device__ inline void bulk_copy_multicast(std::uint32_t to, const void* from, std::uint32_t bytes,
                                           std::uint32_t barrier, std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(blocks)
      : "memory");
}

}  // namespace calla::cuda
