// Metal's 32-bit atomics, which are relaxed.
#pragma once
#include "metal/simulator/shim/types.h"

namespace metal {
inline namespace CALLA_VARIANT {

enum memory_order { memory_order_relaxed = __ATOMIC_RELAXED };

template <class T>
struct atomic {
  static_assert(sizeof(T) == 4, "atomics have 32 bits");
  T value;
};
using atomic_uint = atomic<uint>;
using atomic_int = atomic<int>;

template <class T>
T atomic_load_explicit(const volatile atomic<T>* object, memory_order) {
  return __atomic_load_n(&object->value, __ATOMIC_RELAXED);
}
template <class T>
void atomic_store_explicit(volatile atomic<T>* object, T value, memory_order) {
  __atomic_store_n(&object->value, value, __ATOMIC_RELAXED);
}
template <class T>
T atomic_exchange_explicit(volatile atomic<T>* object, T value, memory_order) {
  return __atomic_exchange_n(&object->value, value, __ATOMIC_RELAXED);
}
template <class T>
bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, T* expected, T value, memory_order,
                                           memory_order) {
  return __atomic_compare_exchange_n(&object->value, expected, value, true, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}
#define CALLA_FETCH(name)                                                               \
  template <class T>                                                                    \
  T atomic_fetch_##name##_explicit(volatile atomic<T>* object, T value, memory_order) { \
    return __atomic_fetch_##name(&object->value, value, __ATOMIC_RELAXED);              \
  }
CALLA_FETCH(add)
CALLA_FETCH(sub)
CALLA_FETCH(and)
CALLA_FETCH(or)
CALLA_FETCH(xor)
#undef CALLA_FETCH
template <class T>
T atomic_fetch_max_explicit(volatile atomic<T>* object, T value, memory_order order) {
  T seen = atomic_load_explicit(object, order);
  while (seen < value && !atomic_compare_exchange_weak_explicit(object, &seen, value, order, order)) {
  }
  return seen;
}
template <class T>
T atomic_fetch_min_explicit(volatile atomic<T>* object, T value, memory_order order) {
  T seen = atomic_load_explicit(object, order);
  while (value < seen && !atomic_compare_exchange_weak_explicit(object, &seen, value, order, order)) {
  }
  return seen;
}

}  // namespace CALLA_VARIANT
}  // namespace metal

using metal::atomic_int;
using metal::atomic_uint;
