// The kernels, compiled with the flags of this level: see src/CMakeLists.txt.
#ifdef __x86_64__
#ifndef __clang__
// GCC 12 finds the undefined registers of its own header uninitialised (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "cpu/kernels.h"
#include "cpu/table.inl"

namespace calla::cpu {
extern const KernelTable kernels_avx512;
const KernelTable kernels_avx512 = table("AVX-512");
}  // namespace calla::cpu
#endif
