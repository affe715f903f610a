// Gated DeltaNet: the convolution and the recurrent scan. Every column of the state is independent of the
// others, so a block of columns runs through all tokens by itself, in first-level cache.
#pragma once
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace calla::cpu {
namespace {

constexpr int delta_dim = 128;
constexpr int block_columns = 32;

void convolve(float* x, std::size_t stride, int tokens, int channels, const float* taps,
              std::size_t taps_stride, float* window, std::size_t window_stride) {
  for (int c = 0; c < channels; c += lanes) {
    const Floats tap0 = load(taps + c);
    const Floats tap1 = load(taps + taps_stride + c);
    const Floats tap2 = load(taps + 2 * taps_stride + c);
    const Floats tap3 = load(taps + 3 * taps_stride + c);
    Floats past0 = load(window + c);
    Floats past1 = load(window + window_stride + c);
    Floats past2 = load(window + 2 * window_stride + c);
    float* at = x + c;
    for (int t = 0; t < tokens; ++t, at += stride) {
      const Floats now = load(at);
      store(at, silu(fma(now, tap3, fma(past2, tap2, fma(past1, tap1, past0 * tap0)))));
      past0 = past1;
      past1 = past2;
      past2 = now;
    }
    store(window + c, past0);
    store(window + window_stride + c, past1);
    store(window + 2 * window_stride + c, past2);
  }
}

CALLA_INLINE float dot_delta(const float* a, const float* b) {
  Floats s = load(a) * load(b);
  for (int i = lanes; i < delta_dim; i += lanes) s = fma(load(a + i), load(b + i), s);
  return sum(s);
}

/// One token, `width` vectors of columns: a sweep that reads what the state holds for k and q, and one that
/// updates it. o = S'^T q = g S^T q + (k.q) u.
template <int width>
CALLA_INLINE void delta_token(float* state, const float* q, const float* k, const float* v, float g,
                              float beta, float kq, float* out) {
  Floats p[width];
  Floats r[width];
  for (int c = 0; c < width; ++c) p[c] = r[c] = zeros();
  const float* row = state;
  for (int i = 0; i < delta_dim; ++i, row += block_columns) {
    const Floats ki = splat(k[i]);
    const Floats qi = splat(q[i]);
    for (int c = 0; c < width; ++c) {
      const Floats s = load(row + c * lanes);
      p[c] = fma(s, ki, p[c]);
      r[c] = fma(s, qi, r[c]);
    }
  }
  const Floats decay = splat(g);
  Floats u[width];
  for (int c = 0; c < width; ++c) {
    u[c] = splat(beta) * (load(v + c * lanes) - decay * p[c]);
    store(out + c * lanes, fma(splat(kq), u[c], decay * r[c]));
  }
  for (int i = 0; i < delta_dim; ++i, state += block_columns) {
    const Floats ki = splat(k[i]);
    for (int c = 0; c < width; ++c) store(state + c * lanes, fma(ki, u[c], decay * load(state + c * lanes)));
  }
}

/// Two tokens a sweep, which halves the passes over the state:
///   u1 = b1 (v1 - g1 S^T k1)                             o1 = g1 S^T q1 + (q1.k1) u1
///   u2 = b2 (v2 - g1 g2 S^T k2 - g2 (k2.k1) u1)          o2 = g1 g2 S^T q2 + g2 (q2.k1) u1 + (q2.k2) u2
///   S  = g1 g2 S + k1 (g2 u1)^T + k2 u2^T
/// Decays are only ever multiplied, so that strong ones underflow to zero and never overflow.
struct TokenPair {
  const float* q[2];
  const float* k[2];
  const float* v[2];
  float* out[2];
  float g[2];
  float beta[2];
  float q1k1, k2k1, q2k1, q2k2;
};

template <int width>
CALLA_INLINE void delta_pair(float* state, const TokenPair& t, int column) {
  Floats p1[width];
  Floats r1[width];
  Floats p2[width];
  Floats r2[width];
  for (int c = 0; c < width; ++c) p1[c] = r1[c] = p2[c] = r2[c] = zeros();
  const float* row = state;
  for (int i = 0; i < delta_dim; ++i, row += block_columns) {
    for (int c = 0; c < width; ++c) {
      const Floats s = load(row + c * lanes);
      p1[c] = fma(s, splat(t.k[0][i]), p1[c]);
      r1[c] = fma(s, splat(t.q[0][i]), r1[c]);
      p2[c] = fma(s, splat(t.k[1][i]), p2[c]);
      r2[c] = fma(s, splat(t.q[1][i]), r2[c]);
    }
  }
  const Floats g1 = splat(t.g[0]);
  const Floats g2 = splat(t.g[1]);
  const Floats both = g1 * g2;
  Floats w1[width];
  Floats u2[width];
  for (int c = 0; c < width; ++c) {
    const int at = column + c * lanes;
    const Floats u1 = splat(t.beta[0]) * (load(t.v[0] + at) - g1 * p1[c]);
    w1[c] = g2 * u1;
    u2[c] = splat(t.beta[1]) * (load(t.v[1] + at) - fma(splat(t.k2k1), w1[c], both * p2[c]));
    store(t.out[0] + at, fma(splat(t.q1k1), u1, g1 * r1[c]));
    store(t.out[1] + at, fma(splat(t.q2k2), u2[c], fma(splat(t.q2k1), w1[c], both * r2[c])));
  }
  for (int i = 0; i < delta_dim; ++i, state += block_columns) {
    for (int c = 0; c < width; ++c) {
      const Floats kept = fma(splat(t.k[0][i]), w1[c], both * load(state + c * lanes));
      store(state + c * lanes, fma(splat(t.k[1][i]), u2[c], kept));
    }
  }
}

constexpr int token_width = 2;  // vectors of columns in registers at a time
#if defined(__AVX512F__)
constexpr int pair_width = 2;
#else
constexpr int pair_width = 1;
#endif

/// Where column `column` of the first row lies.
CALLA_INLINE float* state_column(float* state, int column) {
  return state + column / block_columns * (delta_dim * block_columns) + column % block_columns;
}

void delta_scan(float* state, const float* q, const float* k, const float* v, std::size_t stride,
                const float* decay, const float* beta, int tokens, float* out, std::size_t out_stride) {
  int t = 0;
  for (; t + 2 <= tokens; t += 2) {
    TokenPair pair;
    for (int i = 0; i < 2; ++i) {
      const std::size_t at = static_cast<std::size_t>(t + i) * stride;
      pair.q[i] = q + at;
      pair.k[i] = k + at;
      pair.v[i] = v + at;
      pair.out[i] = out + static_cast<std::size_t>(t + i) * out_stride;
      pair.g[i] = decay[t + i];
      pair.beta[i] = beta[t + i];
    }
    pair.q1k1 = dot_delta(pair.q[0], pair.k[0]);
    pair.k2k1 = dot_delta(pair.k[1], pair.k[0]);
    pair.q2k1 = dot_delta(pair.q[1], pair.k[0]);
    pair.q2k2 = dot_delta(pair.q[1], pair.k[1]);
    for (int column = 0; column < delta_dim; column += pair_width * lanes)
      delta_pair<pair_width>(state_column(state, column), pair, column);
  }
  if (t < tokens) {
    const std::size_t at = static_cast<std::size_t>(t) * stride;
    const float kq = dot_delta(k + at, q + at);
    for (int column = 0; column < delta_dim; column += token_width * lanes) {
      delta_token<token_width>(state_column(state, column), q + at, k + at, v + at + column, decay[t],
                               beta[t], kq, out + static_cast<std::size_t>(t) * out_stride + column);
    }
  }
}

}  // namespace
}  // namespace calla::cpu
