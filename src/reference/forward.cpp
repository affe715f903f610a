#include "reference/forward.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numeric>

#include "reference/ops.h"

namespace calla::reference {
namespace {

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

std::span<float> row(Rows& rows, std::size_t index, std::size_t width) {
  return std::span(rows).subspan(index * width, width);
}

void add(std::span<float> x, std::span<const float> y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

/// RoPE on the first 64 of a head's dims, as pairs (j, j + 32) turned by position * theta^(-j / 32). Angles
/// in double: at position 262,143 a float angle is off by up to 0.016.
void rotate(std::span<float> head, int position) {
  constexpr int half = Shape::rotary_dim / 2;
  for (int j = 0; j < half; ++j) {
    const double angle = position * std::pow(rope_theta, -static_cast<double>(j) / half);
    const auto cosine = static_cast<float>(std::cos(angle));
    const auto sine = static_cast<float>(std::sin(angle));
    const float low = head[size(j)];
    const float high = head[size(j + half)];
    head[size(j)] = low * cosine - high * sine;
    head[size(j + half)] = high * cosine + low * sine;
  }
}

/// Gated full attention over the cache and the tokens themselves, causal. x is [tokens, hidden] after the
/// input norm; returns [tokens, hidden].
template <Shape S>
Rows attention(const AttentionWeights& w, KvCache& cache, int position, std::span<const float> x) {
  constexpr std::size_t head_dim = Shape::attention_head_dim;
  constexpr std::size_t heads = S.attention_heads;
  constexpr std::size_t kv_heads = S.kv_heads;
  const std::size_t tokens = x.size() / S.hidden;

  const Rows query_and_gate = linear(w.q, x);  // per head [query 256 | gate 256]
  Rows keys = linear(w.k, x);
  const Rows values = linear(w.v, x);

  // The new keys, normalised and turned, and the values join the cache.
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t h = 0; h < kv_heads; ++h) {
      const std::span<float> key = row(keys, t * kv_heads + h, head_dim);
      rms_norm(key, w.k_norm, key);
      rotate(key, position + static_cast<int>(t));
    }
  }
  cache.keys.insert(cache.keys.end(), keys.begin(), keys.end());
  cache.values.insert(cache.values.end(), values.begin(), values.end());

  Rows mixed(tokens * heads * head_dim);
  Rows query(head_dim);
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::size_t visible = size(position) + t + 1;
    std::vector<float> scores(visible);
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t kv_head = h * kv_heads / heads;
      const auto cached = [&](const std::vector<float>& rows, std::size_t p) {
        return std::span(rows).subspan((p * kv_heads + kv_head) * head_dim, head_dim);
      };
      const auto both = std::span(query_and_gate).subspan((t * heads + h) * 2 * head_dim, 2 * head_dim);
      const std::span<const float> gate = both.subspan(head_dim);
      rms_norm(both.first(head_dim), w.q_norm, query);
      rotate(query, position + static_cast<int>(t));

      for (std::size_t p = 0; p < visible; ++p)
        scores[p] = dot(query, cached(cache.keys, p)) / 16.0F;  // sqrt(256)
      softmax(scores);

      const std::span<float> out = row(mixed, t * heads + h, head_dim);
      for (std::size_t p = 0; p < visible; ++p) {
        const std::span<const float> value = cached(cache.values, p);
        for (std::size_t d = 0; d < head_dim; ++d) out[d] += scores[p] * value[d];
      }
      for (std::size_t d = 0; d < head_dim; ++d) out[d] *= sigmoid(gate[d]);
    }
  }
  return linear(w.o, mixed);
}

/// The causal depthwise convolution over time (4 taps a channel, oldest first) and SiLU. `inputs` [tokens,
/// channels] is replaced by the outputs, and the window by the last three inputs.
template <Shape S>
void convolve(std::span<const float> taps, std::vector<float>& window, Rows& inputs) {
  constexpr std::size_t channels = S.convolution_channels();
  constexpr std::size_t past = Shape::convolution_taps - 1;
  const std::size_t tokens = inputs.size() / channels;
  Rows timeline = window;  // [3 + tokens, channels]
  timeline.insert(timeline.end(), inputs.begin(), inputs.end());
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t c = 0; c < channels; ++c) {
      float sum = 0;
      for (std::size_t tap = 0; tap <= past; ++tap)
        sum += timeline[(t + tap) * channels + c] * taps[c * (past + 1) + tap];
      inputs[t * channels + c] = silu(sum);
    }
  }
  window.assign(timeline.end() - static_cast<std::ptrdiff_t>(past * channels), timeline.end());
}

/// One step of the gated delta rule for one value head: the state S [128 (k), 128 (v)] decays, what it
/// predicts for the key is corrected towards v, and the output is what the new state holds for the query.
///   S = g S;  u = beta (v - S^T k);  S = S + k u^T;  o = S^T q
void delta_step(std::span<float> state, std::span<const float> q, std::span<const float> k,
                std::span<const float> v, float decay, float beta, std::span<float> out) {
  constexpr std::size_t dim = Shape::delta_head_dim;
  std::array<float, dim> update{};
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) {
      state[i * dim + j] *= decay;
      update[j] += state[i * dim + j] * k[i];
    }
  }
  for (std::size_t j = 0; j < dim; ++j) update[j] = (v[j] - update[j]) * beta;
  std::fill(out.begin(), out.end(), 0.0F);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) {
      state[i * dim + j] += k[i] * update[j];
      out[j] += state[i * dim + j] * q[i];
    }
  }
}

/// Gated DeltaNet. x is [tokens, hidden] after the input norm; returns [tokens, hidden].
template <Shape S>
Rows gated_delta(const DeltaNetWeights& w, DeltaState& state, std::span<const float> x) {
  constexpr std::size_t dim = Shape::delta_head_dim;
  constexpr std::size_t key_heads = S.delta_key_heads;
  constexpr std::size_t value_heads = S.delta_value_heads;
  constexpr std::size_t channels = S.convolution_channels();
  const std::size_t tokens = x.size() / S.hidden;

  Rows qkv = linear(w.qkv, x);  // q | k | v
  const Rows z = linear(w.z, x);
  const Rows a = linear(w.a, x);
  const Rows b = linear(w.b, x);
  convolve<S>(w.convolution, state.window, qkv);

  Rows mixed(tokens * value_heads * dim);
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::span<float> channel = row(qkv, t, channels);
    for (std::size_t h = 0; h < key_heads; ++h) {
      l2_normalise(channel.subspan(h * dim, dim), 1.0F / std::sqrt(static_cast<float>(dim)));  // q
      l2_normalise(channel.subspan((key_heads + h) * dim, dim), 1.0F);                         // k
    }
    for (std::size_t h = 0; h < value_heads; ++h) {
      const std::size_t key_head = h * key_heads / value_heads;
      const float decay = std::exp(-std::exp(w.a_log[h]) * softplus(a[t * value_heads + h] + w.dt_bias[h]));
      const float beta = sigmoid(b[t * value_heads + h]);
      const std::span<float> out = row(mixed, t * value_heads + h, dim);
      delta_step(row(state.recurrent, h, dim * dim), channel.subspan(key_head * dim, dim),
                 channel.subspan((key_heads + key_head) * dim, dim),
                 channel.subspan((2 * key_heads + h) * dim, dim), decay, beta, out);
      // The gated norm: each head is normalised, then scaled by silu(z).
      rms_norm(out, w.norm, out);
      for (std::size_t d = 0; d < dim; ++d) out[d] *= silu(z[(t * value_heads + h) * dim + d]);
    }
  }
  return linear(w.out, mixed);
}

/// SwiGLU: down(silu(gate x) * (up x)).
Rows swiglu(const AffineMatrix& gate, const AffineMatrix& up, const AffineMatrix& down,
            std::span<const float> x) {
  Rows inner = linear(gate, x);
  const Rows factor = linear(up, x);
  for (std::size_t i = 0; i < inner.size(); ++i) inner[i] = silu(inner[i]) * factor[i];
  return linear(down, inner);
}

/// The experts that a token is sent to, and their shares.
struct Route {
  std::array<int, Shape::experts_per_token> experts;
  std::array<float, Shape::experts_per_token> shares;
};

/// The eight largest router logits, the lower id first among equals; shares are the softmax over the eight,
/// which equals the softmax over all, renormalised.
Route route(std::span<const float> router_logits) {
  Route chosen{};
  std::vector<int> order(router_logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + Shape::experts_per_token, order.end(), [&](int i, int j) {
    const float x = router_logits[size(i)];
    const float y = router_logits[size(j)];
    return x != y ? x > y : i < j;
  });
  for (std::size_t i = 0; i < chosen.experts.size(); ++i) {
    chosen.experts[i] = order[i];
    chosen.shares[i] = router_logits[size(order[i])];
  }
  softmax(chosen.shares);
  return chosen;
}

/// The mixture of experts. x is [tokens, hidden] after the norm; returns [tokens, hidden].
template <Shape S>
Rows mixture_of_experts(const MoeWeights& w, std::span<const float> x) {
  constexpr std::size_t hidden = S.hidden;
  const std::size_t tokens = x.size() / hidden;

  // Tokens are gathered by expert, so that an expert's weights are read once.
  struct Visit {
    std::size_t token;
    float share;
  };
  std::vector<std::vector<Visit>> visits(S.experts);
  const Rows router_logits = linear(w.router, x);
  for (std::size_t t = 0; t < tokens; ++t) {
    const Route chosen = route(std::span(router_logits).subspan(t * S.experts, S.experts));
    for (std::size_t i = 0; i < chosen.experts.size(); ++i)
      visits[size(chosen.experts[i])].push_back({t, chosen.shares[i]});
  }

  Rows mixed(x.size());
  for (int expert = 0; expert < S.experts; ++expert) {
    const std::vector<Visit>& visitors = visits[size(expert)];
    if (visitors.empty()) continue;
    Rows gathered;
    for (const Visit& visit : visitors) {
      const auto token = x.subspan(visit.token * hidden, hidden);
      gathered.insert(gathered.end(), token.begin(), token.end());
    }
    const Rows answers = swiglu(w.gate.expert(expert), w.up.expert(expert), w.down.expert(expert), gathered);
    for (std::size_t i = 0; i < visitors.size(); ++i) {
      const std::span<float> sum = row(mixed, visitors[i].token, hidden);
      for (std::size_t d = 0; d < hidden; ++d) sum[d] += visitors[i].share * answers[i * hidden + d];
    }
  }

  // The shared expert sees every token, scaled by its own gate.
  const Rows shared = swiglu(w.shared.gate, w.shared.up, w.shared.down, x);
  const Rows shared_gate = linear(w.shared_gate, x);  // [tokens, 1]
  for (std::size_t t = 0; t < tokens; ++t) {
    const float gate = sigmoid(shared_gate[t]);
    for (std::size_t d = 0; d < hidden; ++d) mixed[t * hidden + d] += gate * shared[t * hidden + d];
  }
  return mixed;
}

/// One decoder layer: x = x + mixer(norm(x)); x = x + experts(norm(x)). The caller mixes, as only it knows
/// the layer's state.
template <Shape S, class Mixer>
void decoder_layer(const LayerWeights& w, Rows& x, Mixer mixer) {
  add(x, mixer(rms_norm(x, w.input_norm)));
  add(x, mixture_of_experts<S>(w.moe, rms_norm(x, w.post_attention_norm)));
}

Rows embed(const AffineMatrix& embedding, std::span<const Token> tokens) {
  const std::size_t width = size(embedding.columns);
  Rows x(tokens.size() * width);
  for (std::size_t t = 0; t < tokens.size(); ++t) dequantize_row(embedding, tokens[t], row(x, t, width));
  return x;
}

}  // namespace

template <Shape S>
SequenceState<S>::SequenceState(int layers)
    : attention(size(layers / Shape::attention_interval)), delta(size(layers) - attention.size()) {
  for (DeltaState& layer : delta) {
    layer.recurrent.assign(size(S.delta_value_heads * Shape::delta_head_dim * Shape::delta_head_dim), 0.0F);
    layer.window.assign(size((Shape::convolution_taps - 1) * S.convolution_channels()), 0.0F);
  }
}

template <Shape S>
std::vector<float> forward(const Weights& weights, SequenceState<S>& state, std::span<const Token> tokens,
                           const StageObserver& observe) {
  Rows x = embed(weights.embedding, tokens);
  if (observe) observe(0, x);
  assert(state.attention.size() + state.delta.size() == weights.layers.size());
  int layer = 0;
  for (const LayerWeights& w : weights.layers) {
    decoder_layer<S>(w, x, [&](const Rows& normed) {
      const int attention_layers_before = layer / Shape::attention_interval;
      if (Shape::is_attention(layer)) {
        KvCache& cache = state.attention[size(attention_layers_before)];
        return attention<S>(std::get<AttentionWeights>(w.mixer), cache, state.position, normed);
      }
      DeltaState& delta = state.delta[size(layer - attention_layers_before)];
      return gated_delta<S>(std::get<DeltaNetWeights>(w.mixer), delta, normed);
    });
    ++layer;
    if (observe) observe(layer, x);
  }
  state.position += static_cast<int>(tokens.size());
  return rms_norm(x, weights.norm);
}

template <Shape S>
std::vector<float> logits(const Weights& weights, std::span<const float> hidden) {
  assert(hidden.size() % S.hidden == 0);
  return linear(weights.head, hidden);
}

template <Shape S>
std::vector<float> forward_mtp(const Weights& weights, SequenceState<S>& state, int position,
                               std::span<const float> hidden, std::span<const Token> next) {
  constexpr std::size_t width = S.hidden;
  const MtpWeights& w = weights.mtp.value();
  assert(hidden.size() == next.size() * width && state.mtp.keys.size() == size(position) * size(S.kv_dim()));

  // [norm(embedding of the next token) | norm(hidden)] through fc, one full-attention layer, the layer's own
  // final norm.
  const Rows embedded = rms_norm(embed(weights.embedding, next), w.embedding_norm);
  const Rows normed = rms_norm(hidden, w.hidden_norm);
  Rows joined;
  for (std::size_t t = 0; t < next.size(); ++t) {
    const auto part = [&](const Rows& rows) { return std::span(rows).subspan(t * width, width); };
    for (const auto half : {part(embedded), part(normed)})
      joined.insert(joined.end(), half.begin(), half.end());
  }
  Rows x = linear(w.fc, joined);
  decoder_layer<S>(w.layer, x, [&](const Rows& input) {
    return attention<S>(std::get<AttentionWeights>(w.layer.mixer), state.mtp, position, input);
  });
  return rms_norm(x, w.norm);
}

#define CALLA_INSTANTIATE(shape)                                                                            \
  template struct SequenceState<shape>;                                                                     \
  template std::vector<float> forward<shape>(const Weights&, SequenceState<shape>&, std::span<const Token>, \
                                             const StageObserver&);                                         \
  template std::vector<float> logits<shape>(const Weights&, std::span<const float>);                        \
  template std::vector<float> forward_mtp<shape>(const Weights&, SequenceState<shape>&, int,                \
                                                 std::span<const float>, std::span<const Token>)
CALLA_INSTANTIATE(qwen36_35b);
CALLA_INSTANTIATE(demo);
#undef CALLA_INSTANTIATE

}  // namespace calla::reference
