// The kernels, compiled with the flags of this level: see src/CMakeLists.txt.
#ifdef __x86_64__
#include "cpu/kernels.h"
#include "cpu/table.inl"

namespace calla::cpu {
extern const KernelTable kernels_avx2;
const KernelTable kernels_avx2 = table("AVX2");
}  // namespace calla::cpu
#endif
