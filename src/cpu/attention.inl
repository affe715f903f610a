// Attention of up to 64 queries over the positions of one KV head, with online softmax.
//
// Keys lie as [16 positions] blocks of [128 pairs of dims][16 positions][2], values as [32 positions] blocks
// of [16 chunks of 16 dims][16 pairs of positions][16 dims][2], bfloat16 both: a dword is two numbers, which
// a shift and a mask widen, and no lane ever needs its neighbour's.
#pragma once
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace calla::cpu {
namespace {

constexpr int head_dim = 256;
constexpr int key_block = 16;    // positions
constexpr int value_block = 32;  // positions

void rotate(float* head, const float* turn) {
  constexpr int half = 32;
  for (int j = 0; j < half; j += lanes) {
    const Floats low = load(head + j);
    const Floats high = load(head + half + j);
    const Floats cosine = load(turn + j);
    const Floats sine = load(turn + half + j);
    store(head + j, low * cosine - high * sine);
    store(head + half + j, high * cosine + low * sine);
  }
}

#if defined(__AVX512F__)
constexpr int query_tile = 8;
#else
constexpr int query_tile = 4;
#endif

/// Scores of `m` queries for one block of 16 keys.
template <int m>
CALLA_INLINE void score_block(const float* q, const std::uint16_t* keys, float* scores, int scores_stride) {
  Floats s[m];
  for (int i = 0; i < m; ++i) s[i] = zeros();
  for (int d = 0; d < head_dim; d += 2, keys += 2 * key_block) {
    const Ints pair = load_ints(keys);
    const Floats even = low_bf16(pair);
    const Floats odd = high_bf16(pair);
#pragma GCC unroll 8
    for (int i = 0; i < m; ++i) {
      s[i] = fma(even, splat(q[i * head_dim + d]), s[i]);
      s[i] = fma(odd, splat(q[i * head_dim + d + 1]), s[i]);
    }
  }
  for (int i = 0; i < m; ++i) store(scores + i * scores_stride, s[i]);
}

/// Adds the weighted values of one block of 32 positions to the outputs of `m` queries.
template <int m>
CALLA_INLINE void value_sum(const float* weights, const std::uint16_t* values, float* out) {
  for (int chunk = 0; chunk < head_dim; chunk += lanes) {
    Floats sums[m];
    for (int i = 0; i < m; ++i) sums[i] = load(out + i * head_dim + chunk);
    for (int p = 0; p < value_block; p += 2, values += 2 * lanes) {
      const Ints pair = load_ints(values);
      const Floats even = low_bf16(pair);
      const Floats odd = high_bf16(pair);
#pragma GCC unroll 8
      for (int i = 0; i < m; ++i) {
        sums[i] = fma(even, splat(weights[i * value_block + p]), sums[i]);
        sums[i] = fma(odd, splat(weights[i * value_block + p + 1]), sums[i]);
      }
    }
    for (int i = 0; i < m; ++i) store(out + i * head_dim + chunk, sums[i]);
  }
}

/// Turns the scores of one query for 32 positions, of which it sees the first `visible`, into weights
/// relative to the largest score so far.
CALLA_INLINE void soften(float* scores, int visible, float* peak, float* total, float* out) {
  constexpr float hidden_score = -1e30F;
  for (int p = visible > 0 ? visible : 0; p < value_block; ++p) scores[p] = hidden_score;
  const Floats low = load(scores);
  const Floats high = load(scores + lanes);
  float lane[lanes];
  store(lane, max(low, high));
  float top = *peak;
  for (const float value : lane) top = value > top ? value : top;
  if (top > *peak) {
    const Floats shrink = exp(splat(*peak - top));
    float factor[lanes];
    store(factor, shrink);
    *total *= factor[0];
    for (int d = 0; d < head_dim; d += lanes) store(out + d, load(out + d) * shrink);
    *peak = top;
  }
  Floats weights[2] = {exp(low - splat(top)), exp(high - splat(top))};
  store(scores, weights[0]);
  store(scores + lanes, weights[1]);
  // What is hidden weighs nothing at all, however small exp() takes it to be.
  for (int p = visible > 0 ? visible : 0; p < value_block; ++p) scores[p] = 0;
  *total += sum(load(scores) + load(scores + lanes));
}

template <int m>
void attend_rows(const float* q, const std::uint16_t* keys, const std::uint16_t* values, int first,
                 const std::int32_t* limits, AttentionState state) {
  float scores[m * value_block];
  score_block<m>(q, keys, scores, value_block);
  score_block<m>(q, keys + key_block * head_dim, scores + key_block, value_block);
  for (int i = 0; i < m; ++i) {
    const int visible = limits[i] - first;
    soften(scores + i * value_block, visible < value_block ? visible : value_block, state.peak + i,
           state.sum + i, state.out + i * head_dim);
  }
  value_sum<m>(scores, values, state.out);
}

template <int m>
void attend_rest(int count, const float* q, const std::uint16_t* keys, const std::uint16_t* values, int first,
                 const std::int32_t* limits, AttentionState state) {
  if (count == m) {
    attend_rows<m>(q, keys, values, first, limits, state);
  } else if constexpr (m > 1) {
    attend_rest<m - 1>(count, q, keys, values, first, limits, state);
  }
}

void attend(const float* q, int rows, const std::uint16_t* keys, const std::uint16_t* values, int positions,
            const std::int32_t* limits, AttentionState state) {
  for (int first = 0; first < positions; first += value_block) {
    for (int row = 0; row < rows; row += query_tile) {
      const int now = rows - row < query_tile ? rows - row : query_tile;
      attend_rest<query_tile>(now, q + row * head_dim, keys, values, first, limits + row,
                              {state.peak + row, state.sum + row, state.out + row * head_dim});
    }
    keys += value_block * head_dim;
    values += value_block * head_dim;
  }
}

void merge(AttentionState state, AttentionState other) {
  const float top = *state.peak > *other.peak ? *state.peak : *other.peak;
  float mine[lanes];
  float theirs[lanes];
  store(mine, exp(splat(*state.peak - top)));
  store(theirs, exp(splat(*other.peak - top)));
  *state.peak = top;
  *state.sum = *state.sum * mine[0] + *other.sum * theirs[0];
  for (int d = 0; d < head_dim; d += lanes) {
    store(state.out + d, fma(splat(theirs[0]), load(other.out + d), splat(mine[0]) * load(state.out + d)));
  }
}

void gate_output(AttentionState state, const float* gate, float* out) {
  const Floats scale = splat(1.0F / *state.sum);
  for (int d = 0; d < head_dim; d += lanes)
    store(out + d, load(state.out + d) * scale * sigmoid(load(gate + d)));
}

}  // namespace
}  // namespace calla::cpu
