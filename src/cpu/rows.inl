// Work on single rows of activations: norms, quantisation.
#pragma once
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace calla::cpu {
namespace {

CALLA_INLINE float sum_of_squares(const float* x, int n) {
  Floats sums[2] = {zeros(), zeros()};
  int i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    for (int k = 0; k < 2; ++k) {
      const Floats v = load(x + i + k * lanes);
      sums[k] = fma(v, v, sums[k]);
    }
  }
  if (i < n) sums[0] = fma(load(x + i), load(x + i), sums[0]);
  return sum(sums[0] + sums[1]);
}

CALLA_INLINE float rms_scale(const float* x, int n) {
  return 1.0F / __builtin_sqrtf(sum_of_squares(x, n) / static_cast<float>(n) + 1e-6F);
}

void rms_norm(const float* x, const float* gain, int n, float* y) {
  const Floats scale = splat(rms_scale(x, n));
  for (int i = 0; i < n; i += lanes) store(y + i, load(x + i) * scale * load(gain + i));
}

void gated_norm(const float* x, const float* gain, const float* z, float* out) {
  constexpr int n = 128;
  const Floats scale = splat(rms_scale(x, n));
  for (int i = 0; i < n; i += lanes) {
    store(out + i, load(x + i) * scale * load(gain + i) * silu(load(z + i)));
  }
}

void l2_normalise(float* x, float scale) {
  constexpr int n = 128;
  const Floats factor = splat(scale / __builtin_sqrtf(sum_of_squares(x, n) + 1e-6F));
  for (int i = 0; i < n; i += lanes) store(x + i, load(x + i) * factor);
}

/// The largest absolute value of 64. As integers, the absolute values keep their order, and a NaN is above
/// all others: it becomes the scale, and with that the output, instead of vanishing.
CALLA_INLINE float largest(const float* x) {
  const Ints mask = splat_int(0x7fffffff);
  Ints peak = as_ints(load(x)) & mask;
  for (int i = lanes; i < group_columns; i += lanes) peak = max(peak, as_ints(load(x + i)) & mask);
  std::int32_t lane[lanes];
  __builtin_memcpy(lane, &peak, sizeof(lane));
  std::int32_t top = lane[0];
  for (int i = 1; i < lanes; ++i) top = lane[i] > top ? lane[i] : top;
  float value = 0;
  __builtin_memcpy(&value, &top, sizeof(value));
  return value;
}

/// Even elements, then odd ones, of 64.
CALLA_INLINE void split_even_odd(const std::int8_t* from, std::int8_t* to) {
  constexpr int half = group_columns / 2;
  for (int i = 0; i < half; ++i) {
    to[i] = from[2 * i];
    to[half + i] = from[2 * i + 1];
  }
}

void quantise(const float* x, int groups, int planes, std::int8_t* values, float* factors) {
  const float steps = planes == 2 ? 16256.0F : 127.0F;
  for (int g = 0; g < groups; ++g, x += group_columns, factors += 2) {
    const float peak = largest(x);
    const float scale = peak / steps;
    const Floats inverse = splat(peak > 0 ? steps / peak : 0.0F);
    Ints total = splat_int(0);
    std::int8_t high[group_columns];
    std::int8_t low[group_columns];
    for (int i = 0; i < group_columns; i += lanes) {
      const Ints a = to_ints(load(x + i) * inverse);
      total = total + a;
      if (planes == 2) {
        const Ints h = shift_right<7>(a + splat_int(64));
        store_bytes(high + i, h);
        store_bytes(low + i, a - shift_left<7>(h));
      } else {
        store_bytes(high + i, a);
      }
    }
    split_even_odd(high, values);
    values += group_columns;
    if (planes == 2) {
      split_even_odd(low, values);
      values += group_columns;
    }
    factors[0] = scale;
    factors[1] = scale * sum(to_floats(total));
  }
}

void group_sums(const float* x, int n, float* sums) {
  for (int g = 0; g < n / group_columns; ++g, x += group_columns) {
    sums[g] = sum((load(x) + load(x + lanes)) + (load(x + 2 * lanes) + load(x + 3 * lanes)));
  }
}

}  // namespace
}  // namespace calla::cpu
