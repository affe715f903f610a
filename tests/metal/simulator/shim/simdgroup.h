// Barriers and SIMD functions: each is a meeting of a SIMD-group's lanes, or of all threads.
#pragma once
#include "metal/simulator/machine.h"
#include "metal/simulator/shim/math.h"

// Where a function was called, as its last parameters.
#define CALLA_SITE const char *file = __builtin_FILE(), uint line = __builtin_LINE()

namespace metal {
inline namespace CALLA_VARIANT {

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<uint>(a) | static_cast<uint>(b));
}

CALLA_UNWATCHED inline void threadgroup_barrier(mem_flags flags, CALLA_SITE) {
  using namespace calla::metal::simulation;
  meet(*current, Meeting::threadgroup_barrier, static_cast<unsigned>(flags), {file, line});
}
CALLA_UNWATCHED inline void simdgroup_barrier(mem_flags flags, CALLA_SITE) {
  using namespace calla::metal::simulation;
  meet(*current, Meeting::simdgroup_barrier, static_cast<unsigned>(flags), {file, line});
}

template <class T>
struct element {
  using type = T;
};
template <class T, int N>
struct element<vec<T, N>> {
  using type = T;
};
/// Types that SIMD functions take: numbers of 16 and 32 bits, and vectors of them.
template <class T>
concept simd_type = (sizeof(typename element<T>::type) == 2 || sizeof(typename element<T>::type) == 4) &&
                    sizeof(T) <= 16;

/// Waits for the other lanes.
CALLA_UNWATCHED inline void meet_lanes(const char* file, uint line) {
  using namespace calla::metal::simulation;
  meet(*current, Meeting::simd_function, 0, {file, line});
}

/// All lanes' values.
template <simd_type T>
CALLA_UNWATCHED const T* exchange(T value, const char* file, uint line) {
  using namespace calla::metal::simulation;
  Thread& thread = *current;
  T* values = reinterpret_cast<T*>(thread.group->exchange[thread.meetings++ & 1]);
  values[thread.lane] = value;
  meet(thread, Meeting::simd_function, 0, {file, line});
  return values;
}

/// The values combined as a butterfly does: first those 16 lanes apart. The last lane to come does it for
/// all.
template <simd_type T, class Operation>
CALLA_UNWATCHED T reduce(T value, Operation operation, const char* file, uint line) {
  using namespace calla::metal::simulation;
  Thread& thread = *current;
  T* values = reinterpret_cast<T*>(thread.group->exchange[thread.meetings++ & 1]);
  values[thread.lane] = value;
  if (meet(thread, Meeting::simd_function, 0, {file, line})) {
    for (uint half_width = 16; half_width > 0; half_width /= 2) {
      for (uint i = 0; i < half_width; ++i) values[i] = operation(values[i], values[i + half_width]);
    }
  }
  return values[0];
}

#define CALLA_REDUCTION(name, expression)                                        \
  template <simd_type T>                                                         \
  T name(T value, CALLA_SITE) {                                                  \
    return reduce(                                                               \
        value, [](T a, T b) { return static_cast<T>(expression); }, file, line); \
  }
CALLA_REDUCTION(simd_sum, a + b)
CALLA_REDUCTION(simd_product, a* b)
CALLA_REDUCTION(simd_min, min(a, b))
CALLA_REDUCTION(simd_max, max(a, b))
CALLA_REDUCTION(simd_and, a& b)
CALLA_REDUCTION(simd_or, a | b)
CALLA_REDUCTION(simd_xor, a ^ b)
#undef CALLA_REDUCTION

CALLA_UNWATCHED inline uint this_lane() { return calla::metal::simulation::current->lane; }

/// A lane's value, for which the lane must exist.
template <simd_type T>
CALLA_UNWATCHED T value_of(const T* values, uint lane, const char* file, uint line) {
  if (lane >= 32) {
    calla::metal::simulation::report("a value is read from a lane that does not exist", lane, {file, line});
    lane %= 32;
  }
  return values[lane];
}

template <simd_type T>
T simd_shuffle(T value, ushort lane, CALLA_SITE) {
  return value_of(exchange(value, file, line), lane, file, line);
}
template <simd_type T>
T simd_broadcast(T value, ushort lane, CALLA_SITE) {
  return value_of(exchange(value, file, line), lane, file, line);
}
template <simd_type T>
CALLA_UNWATCHED T simd_broadcast_first(T value, CALLA_SITE) {
  return exchange(value, file, line)[0];
}
template <simd_type T>
T simd_shuffle_xor(T value, ushort mask, CALLA_SITE) {
  return value_of(exchange(value, file, line), this_lane() ^ mask, file, line);
}
template <simd_type T>
CALLA_UNWATCHED T simd_shuffle_up(T value, ushort delta, CALLA_SITE) {
  const T* values = exchange(value, file, line);
  return this_lane() >= delta ? values[this_lane() - delta] : value;
}
template <simd_type T>
CALLA_UNWATCHED T simd_shuffle_down(T value, ushort delta, CALLA_SITE) {
  const T* values = exchange(value, file, line);
  return this_lane() + delta < 32U ? values[this_lane() + delta] : value;
}
template <simd_type T>
CALLA_UNWATCHED T simd_shuffle_rotate_up(T value, ushort delta, CALLA_SITE) {
  return exchange(value, file, line)[(this_lane() - delta) % 32U];
}
template <simd_type T>
CALLA_UNWATCHED T simd_shuffle_rotate_down(T value, ushort delta, CALLA_SITE) {
  return exchange(value, file, line)[(this_lane() + delta) % 32U];
}

template <simd_type T>
CALLA_UNWATCHED T simd_prefix_inclusive_sum(T value, CALLA_SITE) {
  const T* values = exchange(value, file, line);
  T sum = values[0];
  for (uint i = 1; i <= this_lane(); ++i) sum = static_cast<T>(sum + values[i]);
  return sum;
}
template <simd_type T>
CALLA_UNWATCHED T simd_prefix_exclusive_sum(T value, CALLA_SITE) {
  const T* values = exchange(value, file, line);
  T sum = T(0);
  for (uint i = 0; i < this_lane(); ++i) sum = static_cast<T>(sum + values[i]);
  return sum;
}
template <simd_type T>
CALLA_UNWATCHED T simd_prefix_inclusive_product(T value, CALLA_SITE) {
  const T* values = exchange(value, file, line);
  T product = values[0];
  for (uint i = 1; i <= this_lane(); ++i) product = static_cast<T>(product * values[i]);
  return product;
}

/// Which lanes' condition holds.
class simd_vote {
 public:
  using vote_t = ulong;
  explicit simd_vote(vote_t lanes) : lanes_(lanes) {}
  explicit operator vote_t() const { return lanes_; }
  bool all() const { return lanes_ == 0xffffffffUL; }
  bool any() const { return lanes_ != 0; }

 private:
  vote_t lanes_;
};
CALLA_UNWATCHED inline simd_vote simd_ballot(bool condition, CALLA_SITE) {
  const uint* values = exchange(condition ? 1U : 0U, file, line);
  ulong lanes = 0;
  for (uint i = 0; i < 32; ++i) lanes |= static_cast<ulong>(values[i]) << i;
  return simd_vote(lanes);
}
inline bool simd_all(bool condition, CALLA_SITE) { return simd_ballot(condition, file, line).all(); }
inline bool simd_any(bool condition, CALLA_SITE) { return simd_ballot(condition, file, line).any(); }
inline bool simd_is_first() { return this_lane() == 0; }

}  // namespace CALLA_VARIANT
}  // namespace metal
