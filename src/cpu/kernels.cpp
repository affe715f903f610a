#include "cpu/kernels.h"

#include <initializer_list>

namespace calla::cpu {

extern const KernelTable kernels_portable;
#ifdef __x86_64__
extern const KernelTable kernels_avx2;
extern const KernelTable kernels_avx512;
#endif

const KernelTable* kernels(Level level) {
  // The compiler's run-time check asks the processor and whether the system saves its registers.
  switch (level) {
#ifdef __x86_64__
    case Level::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                     __builtin_cpu_supports("avx512vnni")
                 ? &kernels_avx512
                 : nullptr;
    case Level::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels_avx2 : nullptr;
#else
    case Level::avx512:
    case Level::avx2:
      return nullptr;
#endif
    case Level::portable:
      return &kernels_portable;
  }
  return nullptr;
}

const KernelTable& best_kernels() {
  for (const Level level : {Level::avx512, Level::avx2}) {
    if (const KernelTable* table = kernels(level)) return *table;
  }
  return kernels_portable;
}

}  // namespace calla::cpu
