// The kernels, compiled with the flags of this level: see src/CMakeLists.txt.
#include "cpu/kernels.h"
#include "cpu/table.inl"

namespace calla::cpu {
extern const KernelTable kernels_portable;
const KernelTable kernels_portable = table("portable");
}  // namespace calla::cpu
