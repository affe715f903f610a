// What code calls that a compiler instruments with -fsanitize=thread, and with some of -fsanitize=undefined:
// our own functions in place of the sanitizers' libraries.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "metal/simulator/watch.h"

using calla::metal::simulation::current;
using calla::metal::simulation::Watch;

namespace {

constexpr Watch::Access reading{true, false};
constexpr Watch::Access writing{false, true};
constexpr Watch::Access loading{true, false, true};
constexpr Watch::Access storing{false, true, true};
constexpr Watch::Access updating{true, true, true};

void watch(const void* address, std::size_t bytes, Watch::Access access, const void* at) {
  if (!Watch::on_stack(address) && current != nullptr) Watch::active->access(address, bytes, access, at);
}
void watch_range(const void* address, std::size_t bytes, Watch::Access access, const void* at) {
  if (!Watch::on_stack(address) && current != nullptr)
    Watch::active->access_range(address, bytes, access, at);
}

}  // namespace

// The names are the compilers'.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming)
#define CALLA_ACCESS(name, bytes, access) \
  void __tsan_##name(void* address) { watch(address, bytes, access, __builtin_return_address(0)); }
#define CALLA_RANGE(name, bytes, access) \
  void __tsan_##name(void* address) { watch_range(address, bytes, access, __builtin_return_address(0)); }
#define CALLA_ATOMIC(operation, expression)                                                             \
  std::uint32_t __tsan_atomic32_##operation(volatile std::uint32_t* object, std::uint32_t value, int) { \
    watch(const_cast<const std::uint32_t*>(object), 4, updating, __builtin_return_address(0));          \
    const std::uint32_t before = *object;                                                               \
    *object = expression;                                                                               \
    return before;                                                                                      \
  }
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
CALLA_ACCESS(read1, 1, reading)
CALLA_ACCESS(read2, 2, reading)
CALLA_ACCESS(read4, 4, reading)
CALLA_ACCESS(read8, 8, reading)
CALLA_ACCESS(read16, 16, reading)
CALLA_ACCESS(write1, 1, writing)
CALLA_ACCESS(write2, 2, writing)
CALLA_ACCESS(write4, 4, writing)
CALLA_ACCESS(write8, 8, writing)
CALLA_ACCESS(write16, 16, writing)
CALLA_ACCESS(volatile_read4, 4, reading)
CALLA_ACCESS(volatile_write4, 4, writing)
CALLA_RANGE(unaligned_read2, 2, reading)
CALLA_RANGE(unaligned_read4, 4, reading)
CALLA_RANGE(unaligned_read8, 8, reading)
CALLA_RANGE(unaligned_read16, 16, reading)
CALLA_RANGE(unaligned_write2, 2, writing)
CALLA_RANGE(unaligned_write4, 4, writing)
CALLA_RANGE(unaligned_write8, 8, writing)
CALLA_RANGE(unaligned_write16, 16, writing)
void __tsan_read_range(void* address, std::size_t bytes) {
  watch_range(address, bytes, reading, __builtin_return_address(0));
}
void __tsan_write_range(void* address, std::size_t bytes) {
  watch_range(address, bytes, writing, __builtin_return_address(0));
}
void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
  watch_range(from, bytes, reading, __builtin_return_address(0));
  watch_range(to, bytes, writing, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, std::size_t bytes) {
  watch_range(from, bytes, reading, __builtin_return_address(0));
  watch_range(to, bytes, writing, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, std::size_t bytes) {
  watch_range(to, bytes, writing, __builtin_return_address(0));
  return std::memset(to, value, bytes);
}

std::uint32_t __tsan_atomic32_load(const volatile std::uint32_t* object, int) {
  watch(const_cast<const std::uint32_t*>(object), 4, loading, __builtin_return_address(0));
  return *object;
}
void __tsan_atomic32_store(volatile std::uint32_t* object, std::uint32_t value, int) {
  watch(const_cast<const std::uint32_t*>(object), 4, storing, __builtin_return_address(0));
  *object = value;
}
CALLA_ATOMIC(exchange, value)
CALLA_ATOMIC(fetch_add, before + value)
CALLA_ATOMIC(fetch_sub, before - value)
CALLA_ATOMIC(fetch_and, before& value)
CALLA_ATOMIC(fetch_or, before | value)
CALLA_ATOMIC(fetch_xor, before ^ value)
int __tsan_atomic32_compare_exchange_weak(volatile std::uint32_t* object, std::uint32_t* expected,
                                          std::uint32_t value, int, int) {
  watch(const_cast<const std::uint32_t*>(object), 4, updating, __builtin_return_address(0));
  const bool same = *object == *expected;
  if (same) {
    *object = value;
  } else {
    *expected = *object;
  }
  return same ? 1 : 0;
}
int __tsan_atomic32_compare_exchange_strong(volatile std::uint32_t* object, std::uint32_t* expected,
                                            std::uint32_t value, int success, int failure) {
  return __tsan_atomic32_compare_exchange_weak(object, expected, value, success, failure);
}

/// What each of these checks begins its description with.
struct SourceLocation {
  const char* file;
  std::uint32_t line;
  std::uint32_t column;
};
void __ubsan_handle_shift_out_of_bounds(const SourceLocation* at, std::uintptr_t, std::uintptr_t bits) {
  if (current != nullptr)
    Watch::active->fault(fmt::format("shifts by {} bits", static_cast<std::intptr_t>(bits)), at->file,
                         at->line);
}
void __ubsan_handle_float_cast_overflow(const SourceLocation* at, std::uintptr_t) {
  if (current != nullptr)
    Watch::active->fault("converts a float to an integer that cannot hold it", at->file, at->line);
}
void __ubsan_handle_out_of_bounds(const SourceLocation* at, std::uintptr_t index) {
  if (current != nullptr) {
    Watch::active->fault(
        fmt::format("uses element {} of an array that is shorter", static_cast<std::intptr_t>(index)),
        at->file, at->line);
  }
}
}
// NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming)
