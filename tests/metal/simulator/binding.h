// Calls a kernel of any signature with a thread's arguments. The build's kernel tool says which attribute
// each parameter has; the types come from the function itself.
#pragma once
#include <utility>

#include "metal/simulator/machine.h"

namespace calla::metal::simulation {
namespace {  // the kernels' types have internal linkage

/// What the kernel tool read of a parameter: its attribute, its slot where it is a buffer, its name.
struct Bound {
  Attribute attribute;
  unsigned slot;
  const char* name;
};

template <class T>
struct Passed {  // a position: a scalar or a vector
  CALLA_UNWATCHED static T get(const Thread& thread, void* const*, Bound bound) {
    unsigned values[3];
    position(thread, bound.attribute, values);
    if constexpr (requires(T t) { t.z; }) {
      return T(values[0], values[1], values[2]);
    } else if constexpr (requires(T t) { t.y; }) {
      return T(values[0], values[1]);
    } else {
      return T(values[0]);
    }
  }
  static constexpr Parameter describe(Bound bound) {
    return {bound.attribute, 0, bound.name, false, false, 0, 0};
  }
};
template <class T>
struct Passed<T*> {
  CALLA_UNWATCHED static T* get(const Thread&, void* const* buffers, Bound bound) {
    return static_cast<T*>(buffers[bound.slot]);
  }
  static constexpr Parameter describe(Bound bound) {
    return {bound.attribute, bound.slot, bound.name, true, false, sizeof(T), alignof(T)};
  }
};
template <class T>
struct Passed<const T*> {
  CALLA_UNWATCHED static const T* get(const Thread&, void* const* buffers, Bound bound) {
    return static_cast<const T*>(buffers[bound.slot]);
  }
  static constexpr Parameter describe(Bound bound) {
    return {bound.attribute, bound.slot, bound.name, false, false, sizeof(T), alignof(T)};
  }
};
template <class T>
struct Passed<const T&> {
  CALLA_UNWATCHED static const T& get(const Thread&, void* const* buffers, Bound bound) {
    return *static_cast<const T*>(buffers[bound.slot]);
  }
  static constexpr Parameter describe(Bound bound) {
    return {bound.attribute, bound.slot, bound.name, false, true, sizeof(T), alignof(T)};
  }
};

template <const auto& bounds, class... P>
constexpr unsigned parameter_count(void (*)(P...)) {
  static_assert(sizeof(bounds) / sizeof(bounds[0]) == sizeof...(P),
                "each parameter of a kernel has an attribute");
  return sizeof...(P);
}

template <auto function, const auto& bounds, class Indices>
struct Binding;
template <class... P, void (*function)(P...), const auto& bounds, std::size_t... I>
struct Binding<function, bounds, std::index_sequence<I...>> {
  CALLA_UNWATCHED static void run(const Thread& thread, void* const* buffers) {
    function(Passed<P>::get(thread, buffers, bounds[I])...);
  }
  static constexpr Parameter parameters[] = {Passed<P>::describe(bounds[I])...};
};

/// The kernel of this name, whose parameters have the attributes of `bounds`.
template <auto function, const auto& bounds>
constexpr Kernel bind(const char* name) {
  constexpr unsigned count = parameter_count<bounds>(function);
  using Bindings = Binding<function, bounds, std::make_index_sequence<count>>;
  return {name, Bindings::parameters, count, Bindings::run};
}

}  // namespace
}  // namespace calla::metal::simulation
