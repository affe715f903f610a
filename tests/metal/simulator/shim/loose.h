// Metal's arithmetic functions as inexact as its specification lets them be (Metal Shading Language
// Specification 4, section 8.4): where that states a bound a result is off by anything within it. The error
// depends on the exact result and on a seed alone, so that the same arguments always give the same.
#pragma once
#include "metal/simulator/machine.h"
#include "metal/simulator/shim/types.h"

namespace metal {
inline namespace CALLA_VARIANT {
namespace loose {

/// From -1 to 1.
inline double error_of(double exact) {
  ulong bits = as_type<ulong>(exact) ^ calla::metal::simulation::error_seed();
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9UL;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebUL;
  return static_cast<double>(static_cast<long>(bits ^ bits >> 31)) * 0x1p-63;
}

/// The unit in the last place of a float.
inline double unit(double exact) {
  const int exponent = __builtin_ilogb(exact);
  return __builtin_ldexp(1.0, (exponent < -126 ? -126 : exponent) - 23);
}

/// A result off by at most `bound`, of which one unit is left to the rounding: it may be into coarser ones.
inline float off_by(double exact, double bound) {
  if (!(__builtin_fabs(exact) <= static_cast<double>(__FLT_MAX__))) return static_cast<float>(exact);
  return static_cast<float>(exact + error_of(exact) * (bound - unit(exact)));
}
inline float off_by_units(double exact, double units) { return off_by(exact, units * unit(exact)); }

}  // namespace loose
}  // namespace CALLA_VARIANT
}  // namespace metal

#define CALLA_DOUBLE(function) __builtin_##function(static_cast<double>(x))

// Table 8.1. Divisions and roots are rounded correctly.
#define CALLA_PRECISE                                                                                       \
  CALLA_UNARY(exp, loose::off_by_units(CALLA_DOUBLE(exp), 4))                                               \
  CALLA_UNARY(exp2, loose::off_by_units(CALLA_DOUBLE(exp2), 4))                                             \
  CALLA_UNARY(log, loose::off_by_units(CALLA_DOUBLE(log), 4))                                               \
  CALLA_UNARY(log2, loose::off_by_units(CALLA_DOUBLE(log2), 4))                                             \
  CALLA_UNARY(sin, loose::off_by_units(CALLA_DOUBLE(sin), 4))                                               \
  CALLA_UNARY(cos, loose::off_by_units(CALLA_DOUBLE(cos), 4))                                               \
  CALLA_UNARY(tanh, loose::off_by_units(CALLA_DOUBLE(tanh), 5))                                             \
  CALLA_UNARY(sqrt, __builtin_sqrtf(x))                                                                     \
  CALLA_UNARY(rsqrt, static_cast<float>(1.0 / CALLA_DOUBLE(sqrt)))                                          \
  CALLA_BINARY(pow, loose::off_by_units(__builtin_pow(static_cast<double>(x), static_cast<double>(y)), 16)) \
  CALLA_BINARY(divide, x / y)

// Table 8.2. Of sines and cosines it states no bound outside of -pi to pi.
#define CALLA_LOOSE_EXPONENTIAL(function) \
  loose::off_by_units(CALLA_DOUBLE(function), 3.0 + __builtin_floor(2.0 * CALLA_DOUBLE(fabs)))
#define CALLA_LOOSE_LOGARITHM(function, bound, units)                   \
  x >= 0.5f && x <= 2.0f ? loose::off_by(CALLA_DOUBLE(function), bound) \
                         : loose::off_by_units(CALLA_DOUBLE(function), units)
#define CALLA_FAST                                                                                \
  CALLA_UNARY(exp, CALLA_LOOSE_EXPONENTIAL(exp))                                                  \
  CALLA_UNARY(exp2, CALLA_LOOSE_EXPONENTIAL(exp2))                                                \
  CALLA_UNARY(log, CALLA_LOOSE_LOGARITHM(log, 0x1p-21, 3))                                        \
  CALLA_UNARY(log2, CALLA_LOOSE_LOGARITHM(log2, 0x1p-22, 2))                                      \
  CALLA_UNARY(sin, loose::off_by(CALLA_DOUBLE(sin), 0x1p-13))                                     \
  CALLA_UNARY(cos, loose::off_by(CALLA_DOUBLE(cos), 0x1p-13))                                     \
  CALLA_UNARY(rsqrt, loose::off_by_units(1.0 / CALLA_DOUBLE(sqrt), 2))                            \
  CALLA_UNARY(sqrt, x > 0.0f && x <= __FLT_MAX__ ? x * rsqrt(x) : __builtin_sqrtf(x))             \
  CALLA_BINARY(divide, loose::off_by_units(static_cast<double>(x) / static_cast<double>(y), 2.5)) \
  CALLA_UNARY(tanh, divide(exp(2.0f * x) - 1.0f, exp(2.0f * x) + 1.0f))                           \
  CALLA_BINARY(pow, exp2(log2(x) * y))
