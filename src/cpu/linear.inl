// Products of weight panels and activations. A panel is 16 output rows; a group of it, 64 columns, is
//   one line:    dword r = (scale of row r, bfloat16) << 16 | (bias of row r, bfloat16)
//   8 lines:     dword r of line j = word j of the group in row r: nibbles of columns 8 j .. 8 j + 7
//   16 lines instead, for 8-bit weights: bytes of columns 4 j .. 4 j + 3
// Lines are read in ascending order, always: read otherwise, the memory delivers a third.
#pragma once
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace calla::cpu {
namespace {

constexpr int line_bytes = 64;
constexpr int nibble_lines = 8;
constexpr int byte_lines = 16;
constexpr int nibble_group_bytes = (1 + nibble_lines) * line_bytes;
constexpr int byte_group_bytes = (1 + byte_lines) * line_bytes;

CALLA_INLINE Floats group_scales(const std::byte* group) { return high_bf16(load_ints(group)); }
CALLA_INLINE Floats group_biases(const std::byte* group) { return low_bf16(load_ints(group)); }

/// The activations of one group of one row: four columns a dword, even columns first.
template <int planes>
struct GroupValues {
  const std::int8_t* bytes;
  CALLA_INLINE const std::int32_t* even(int plane) const {
    return reinterpret_cast<const std::int32_t*>(bytes + plane * group_columns);
  }
  CALLA_INLINE const std::int32_t* odd(int plane) const { return even(plane) + nibble_lines; }
};

/// How far ahead weights are asked for, in bytes: into the second-level cache early, since it has more
/// requests on their way than the first, and from there into the first. The processor's own prefetchers stop
/// at every page.
constexpr int far_ahead = 64 * nibble_group_bytes;
constexpr int near_ahead = 8 * nibble_group_bytes;

CALLA_INLINE void prefetch_lines(const std::byte* group, int lines) {
  constexpr int reading = 0;
  constexpr int second_level = 2;
  constexpr int all_levels = 3;
  for (int line = 0; line < lines; ++line) {
    __builtin_prefetch(group + far_ahead + line * line_bytes, reading, second_level);
    __builtin_prefetch(group + near_ahead + line * line_bytes, reading, all_levels);
  }
}

/// y + scale_w * (scale_a * t) + bias_w * sum_a.
CALLA_INLINE Floats add_group(Floats y, const std::byte* group, const float* factors, Ints t) {
  y = fma(group_scales(group), splat(factors[0]) * to_floats(t), y);
  return fma(group_biases(group), splat(factors[1]), y);
}

#if defined(__AVX512F__)

/// acc + the four products of unsigned bytes of w and the signed bytes of *a, lane by lane. Written out,
/// since compilers would rather load *a by an instruction of its own.
CALLA_INLINE __m512i dot4(__m512i acc, __m512i w, const std::int32_t* a) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*a));
  return acc;
}

/// The weights of a group: low nibbles, and high nibbles times 16.
struct UnpackedGroup {
  __m512i even[nibble_lines];
  __m512i odd[nibble_lines];
};

CALLA_INLINE __m512i code_line(const std::byte* group, int line) {
  return _mm512_loadu_si512(group + (1 + line) * line_bytes);
}
CALLA_INLINE __m512i low_nibbles(__m512i line) { return _mm512_and_si512(line, _mm512_set1_epi8(0x0f)); }
CALLA_INLINE __m512i high_nibbles(__m512i line) {
  return _mm512_and_si512(line, _mm512_set1_epi8(static_cast<char>(0xf0)));
}

CALLA_INLINE Ints combine(const __m512i* even, const __m512i* odd, int planes) {
  Ints t = Ints{even[0]} + shift_right<4>(Ints{odd[0]});
  if (planes == 2) t = shift_left<7>(t) + Ints{even[1]} + shift_right<4>(Ints{odd[1]});
  return t;
}

template <int planes>
CALLA_INLINE Ints group_product(const std::byte* group, GroupValues<planes> a) {
  __m512i even[planes] = {};
  __m512i odd[planes] = {};
#pragma GCC unroll 8
  for (int j = 0; j < nibble_lines; ++j) {
    const __m512i line = code_line(group, j);
    const __m512i low = low_nibbles(line);
    const __m512i high = high_nibbles(line);
    for (int p = 0; p < planes; ++p) {
      even[p] = dot4(even[p], low, a.even(p) + j);
      odd[p] = dot4(odd[p], high, a.odd(p) + j);
    }
  }
  return combine(even, odd, planes);
}

/// In two halves, so that twice as many products are on their way at a time.
template <int planes>
CALLA_INLINE Ints group_product(const UnpackedGroup& w, GroupValues<planes> a) {
  constexpr int half = nibble_lines / 2;
  __m512i even[2][planes] = {};
  __m512i odd[2][planes] = {};
#pragma GCC unroll 4
  for (int j = 0; j < half; ++j) {
    for (int p = 0; p < planes; ++p) {
      for (int h = 0; h < 2; ++h) {
        even[h][p] = dot4(even[h][p], w.even[j + h * half], a.even(p) + j + h * half);
        odd[h][p] = dot4(odd[h][p], w.odd[j + h * half], a.odd(p) + j + h * half);
      }
    }
  }
  for (int p = 0; p < planes; ++p) {
    even[0][p] = _mm512_add_epi32(even[0][p], even[1][p]);
    odd[0][p] = _mm512_add_epi32(odd[0][p], odd[1][p]);
  }
  return combine(even[0], odd[0], planes);
}

/// `m` rows at once: the weights are unpacked once for all of them.
template <int planes, int m>
CALLA_INLINE void tile(const std::byte* panel, int groups, bool prefetch, const std::int8_t* const* values,
                       const float* const* factors, float* out) {
  Floats y[m];
  for (int i = 0; i < m; ++i) y[i] = zeros();
  for (int g = 0; g < groups; ++g, panel += nibble_group_bytes) {
    if (prefetch) prefetch_lines(panel, 1 + nibble_lines);
    if constexpr (m < 3) {
      for (int i = 0; i < m; ++i) {
        const GroupValues<planes> a{values[i] + g * planes * group_columns};
        y[i] = add_group(y[i], panel, factors[i] + 2 * g, group_product<planes>(panel, a));
      }
    } else {
      UnpackedGroup w;
#pragma GCC unroll 8
      for (int j = 0; j < nibble_lines; ++j) {
        const __m512i line = code_line(panel, j);
        w.even[j] = low_nibbles(line);
        w.odd[j] = high_nibbles(line);
      }
#pragma GCC unroll 8
      for (int i = 0; i < m; ++i) {
        const GroupValues<planes> a{values[i] + g * planes * group_columns};
        y[i] = add_group(y[i], panel, factors[i] + 2 * g, group_product<planes>(w, a));
      }
    }
  }
  for (int i = 0; i < m; ++i) store(out + i * lanes, y[i]);
}
constexpr int tile_rows = 8;

#elif defined(__AVX2__)

// vpmaddubsw adds two products of an unsigned and a signed byte into 16 bits: eight such sums of nibbles and
// int8 stay below 8 * 2 * 15 * 127 = 30,480 and are widened then.

CALLA_INLINE __m256i four_columns(const std::int32_t* a) { return _mm256_set1_epi32(*a); }
CALLA_INLINE __m256i code_half(const std::byte* group, int line, int half) {
  return _mm256_loadu_si256(
      reinterpret_cast<const __m256i*>(group + (1 + line) * line_bytes + half * line_bytes / 2));
}
CALLA_INLINE __m256i low_nibbles(__m256i line) { return _mm256_and_si256(line, _mm256_set1_epi8(0x0f)); }
CALLA_INLINE __m256i high_nibbles(__m256i line) {
  return _mm256_and_si256(_mm256_srli_epi16(line, 4), _mm256_set1_epi8(0x0f));
}

/// One row: both halves of a line are used as it passes.
template <int planes>
CALLA_INLINE Ints group_product(const std::byte* group, GroupValues<planes> a) {
  __m256i t[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 2
  for (int part = 0; part < 2; ++part) {
    __m256i sums[planes][2] = {};
#pragma GCC unroll 4
    for (int line = 0; line < 4; ++line) {
      const int j = 4 * part + line;
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m256i codes = code_half(group, j, half);
        const __m256i low = low_nibbles(codes);
        const __m256i high = high_nibbles(codes);
#pragma GCC unroll 2
        for (int p = 0; p < planes; ++p) {
          const __m256i even = _mm256_maddubs_epi16(low, four_columns(a.even(p) + j));
          const __m256i odd = _mm256_maddubs_epi16(high, four_columns(a.odd(p) + j));
          sums[p][half] = _mm256_add_epi16(sums[p][half], _mm256_add_epi16(even, odd));
        }
      }
    }
    for (int half = 0; half < 2; ++half) {
      t[half] = _mm256_add_epi32(t[half],
                                 _mm256_madd_epi16(sums[0][half], _mm256_set1_epi16(planes == 2 ? 128 : 1)));
      if constexpr (planes == 2) {
        t[half] = _mm256_add_epi32(t[half], _mm256_madd_epi16(sums[1][half], _mm256_set1_epi16(1)));
      }
    }
  }
  return {t[0], t[1]};
}

/// `m` rows at once, for one half of the panel's rows and one half of the group's columns at a time: eight
/// registers of unpacked weights serve all of them.
template <int planes, int m>
CALLA_INLINE void tile(const std::byte* panel, int groups, bool prefetch, const std::int8_t* const* values,
                       const float* const* factors, float* out) {
  Floats y[m];
  for (int i = 0; i < m; ++i) y[i] = zeros();
  for (int g = 0; g < groups; ++g, panel += nibble_group_bytes) {
    if (prefetch) prefetch_lines(panel, 1 + nibble_lines);
    if constexpr (m < 3) {
      for (int i = 0; i < m; ++i) {
        const GroupValues<planes> a{values[i] + g * planes * group_columns};
        y[i] = add_group(y[i], panel, factors[i] + 2 * g, group_product<planes>(panel, a));
      }
    } else {
      __m256i t[m][2];
      for (int part = 0; part < 2; ++part) {
        for (int half = 0; half < 2; ++half) {
          __m256i low[4];
          __m256i high[4];
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            const __m256i line = code_half(panel, 4 * part + j, half);
            low[j] = low_nibbles(line);
            high[j] = high_nibbles(line);
          }
#pragma GCC unroll 1
          for (int i = 0; i < m; ++i) {
            const GroupValues<planes> a{values[i] + g * planes * group_columns};
            __m256i wide{};
#pragma GCC unroll 2
            for (int p = 0; p < planes; ++p) {
              const std::int32_t* even = a.even(p) + 4 * part;
              const std::int32_t* odd = a.odd(p) + 4 * part;
              __m256i sums = _mm256_maddubs_epi16(low[0], four_columns(even));
              sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(high[0], four_columns(odd)));
#pragma GCC unroll 3
              for (int j = 1; j < 4; ++j) {
                sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(low[j], four_columns(even + j)));
                sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(high[j], four_columns(odd + j)));
              }
              const __m256i words =
                  _mm256_madd_epi16(sums, _mm256_set1_epi16(planes == 2 && p == 0 ? 128 : 1));
              wide = p == 0 ? words : _mm256_add_epi32(wide, words);
            }
            t[i][half] = part == 0 ? wide : _mm256_add_epi32(t[i][half], wide);
          }
        }
      }
      for (int i = 0; i < m; ++i) y[i] = add_group(y[i], panel, factors[i] + 2 * g, Ints{t[i][0], t[i][1]});
    }
  }
  for (int i = 0; i < m; ++i) store(out + i * lanes, y[i]);
}
constexpr int tile_rows = 8;

#else

template <int planes, int m>
CALLA_INLINE void tile(const std::byte* panel, int groups, bool prefetch, const std::int8_t* const* values,
                       const float* const* factors, float* out) {
  Floats y[m];
  for (int i = 0; i < m; ++i) y[i] = zeros();
  for (int g = 0; g < groups; ++g, panel += nibble_group_bytes) {
    if (prefetch) prefetch_lines(panel, 1 + nibble_lines);
    std::int32_t t[m][lanes] = {};
    for (int j = 0; j < nibble_lines; ++j) {
      std::uint32_t words[lanes];
      __builtin_memcpy(words, panel + (1 + j) * line_bytes, line_bytes);
      for (int i = 0; i < m; ++i) {
        const std::int8_t* a = values[i] + g * planes * group_columns + 4 * j;
        for (int c = 0; c < 4; ++c) {
          const int even = planes == 2 ? 128 * a[c] + a[group_columns + c] : a[c];
          const int odd = planes == 2 ? 128 * a[32 + c] + a[group_columns + 32 + c] : a[32 + c];
          for (int r = 0; r < lanes; ++r) {
            t[i][r] += static_cast<std::int32_t>(words[r] >> (8 * c) & 15U) * even;
            t[i][r] += static_cast<std::int32_t>(words[r] >> (8 * c + 4) & 15U) * odd;
          }
        }
      }
    }
    for (int i = 0; i < m; ++i) y[i] = add_group(y[i], panel, factors[i] + 2 * g, load_ints(t[i]));
  }
  for (int i = 0; i < m; ++i) store(out + i * lanes, y[i]);
}
constexpr int tile_rows = 4;

#endif

template <int planes, int m>
void rest(int count, const std::byte* panel, int groups, bool prefetch, const std::int8_t* const* values,
          const float* const* factors, float* out) {
  if (count == m) {
    tile<planes, m>(panel, groups, prefetch, values, factors, out);
  } else if constexpr (m > 1) {
    rest<planes, m - 1>(count, panel, groups, prefetch, values, factors, out);
  }
}

template <int planes>
void linear4_planes(const std::byte* panel, QuantisedRows x, const std::int32_t* rows, int count,
                    float* out) {
  const int groups = x.columns / group_columns;
  const std::int8_t* values[tile_rows];
  const float* factors[tile_rows];
  // The first rows bring the panel into the cache for the others.
  for (bool first = true; count > 0; first = false) {
    const int now = count < tile_rows ? count : tile_rows;
    for (int i = 0; i < now; ++i) {
      const auto row = static_cast<std::size_t>(rows[i]);
      values[i] = x.values + row * static_cast<std::size_t>(x.columns * planes);
      factors[i] = x.factors + row * static_cast<std::size_t>(2 * groups);
    }
    rest<planes, tile_rows>(now, panel, groups, first, values, factors, out);
    rows += now;
    out += now * lanes;
    count -= now;
  }
}

void linear4(const std::byte* panel, QuantisedRows x, const std::int32_t* rows, int count, float* out) {
  if (x.planes == 2) {
    linear4_planes<2>(panel, x, rows, count, out);
  } else {
    linear4_planes<1>(panel, x, rows, count, out);
  }
}

#if defined(__AVX512F__)
constexpr int tile8_rows = 4;
#else
constexpr int tile8_rows = 4;
#endif

template <int m>
CALLA_INLINE void tile8(const std::byte* panel, int columns, const float* x, const float* sums, float* out) {
  Floats y[m];
  for (int i = 0; i < m; ++i) y[i] = zeros();
  const int groups = columns / group_columns;
  for (int g = 0; g < groups; ++g, panel += byte_group_bytes) {
    if constexpr (m == 1) prefetch_lines(panel, 1 + byte_lines);
    Floats products[2][m];  // of even and of odd columns: two sums on their way
    for (int i = 0; i < m; ++i) products[0][i] = products[1][i] = zeros();
    for (int j = 0; j < byte_lines; ++j) {
      Ints line = load_ints(panel + (1 + j) * line_bytes);
      const float* column = x + g * group_columns + 4 * j;
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        const Floats w = to_floats(line & splat_int(255));
        line = shift_right<8>(line);
#pragma GCC unroll 4
        for (int i = 0; i < m; ++i)
          products[c % 2][i] = fma(w, splat(column[i * columns + c]), products[c % 2][i]);
      }
    }
    for (int i = 0; i < m; ++i) {
      y[i] = fma(group_scales(panel), products[0][i] + products[1][i], y[i]);
      y[i] = fma(group_biases(panel), splat(sums[i * groups + g]), y[i]);
    }
  }
  for (int i = 0; i < m; ++i) store(out + i * lanes, y[i]);
}

void linear8(const std::byte* panel, int columns, const float* x, const float* sums, int count, float* out) {
  constexpr int m = tile8_rows;
  const int groups = columns / group_columns;
  for (; count >= m; count -= m, x += m * columns, sums += m * groups, out += m * lanes)
    tile8<m>(panel, columns, x, sums, out);
  for (; count > 0; --count, x += columns, sums += groups, out += lanes)
    tile8<1>(panel, columns, x, sums, out);
}

void scatter_add(const float* tile, const std::int32_t* rows, const float* shares, int count, float* y,
                 std::size_t stride) {
  for (int i = 0; i < count; ++i, tile += lanes) {
    float* sum = y + static_cast<std::size_t>(rows[i]) * stride;
    store(sum, fma(splat(shares != nullptr ? shares[i] : 1.0F), load(tile), load(sum)));
  }
}

void swiglu(const float* gate, const float* up, int count, float* out) {
  for (int i = 0; i < count; ++i) {
    store(out + i * group_columns, silu(load(gate + i * lanes)) * load(up + i * lanes));
  }
}

}  // namespace
}  // namespace calla::cpu
