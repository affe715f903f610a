#include <algorithm>

#include "cuda/carver.h"
#include "cuda/combine.h"
#include "cuda/gemm.h"
#include "cuda/models.h"
#include "cuda/norm.h"
#include "cuda/prefill.h"

namespace calla::cuda {
namespace {

constexpr int most_chunk = 8192;
constexpr int codes_of_word = 8;

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

/// x [tokens][hidden] = scale * code + bias of the tokens' rows. Bytes moved: the rows, and x.
__global__ void embed_kernel(EmbeddingRows embedding, const int* tokens, float* x) {
  const auto row = static_cast<std::size_t>(blockIdx.x);
  const int word = static_cast<int>(threadIdx.x);
  const auto token = static_cast<std::size_t>(tokens[row]);
  const int groups = embedding.columns / Shape::quantization_group;
  const std::size_t group = token * groups + word * codes_of_word / Shape::quantization_group;
  const float scale = __uint_as_float(static_cast<std::uint32_t>(embedding.scales[group]) << 16);
  const float bias = __uint_as_float(static_cast<std::uint32_t>(embedding.biases[group]) << 16);
  const std::uint32_t codes = embedding.codes[token * (embedding.columns / codes_of_word) + word];
  float* const out = x + row * embedding.columns + word * codes_of_word;
#pragma unroll
  for (int i = 0; i < codes_of_word; ++i)
    out[i] = __fadd_rn(__fmul_rn(scale, static_cast<float>((codes >> (4 * i)) & 0xFU)), bias);
}

struct Workspace {
  int* tokens;
  float* x;
  SplitRows normed;
  __half* projected;
  float* gates;
  __half* mixed;
  std::byte* delta;
  float* router;
  std::byte* routes;
  __half* inner;
  __half* answers;
  __half* shared_inner;
  __half* shared_answers;
};

Workspace carve(Carver& carver, const Shape& s, int chunk) {
  // Tiles of tokens are read whole.
  const std::size_t rows = size((chunk + token_tile - 1) / token_tile * token_tile);
  const std::size_t top = Shape::experts_per_token;
  Workspace w{};
  carver.take(w.tokens, rows);
  carver.take(w.x, rows * size(s.hidden));
  carver.take(w.normed.high, rows * size(s.hidden));
  carver.take(w.normed.low, rows * size(s.hidden));
  carver.take(w.normed.sums, rows * size(s.hidden / Shape::quantization_group));
  carver.take(w.projected, rows * size(std::max(s.convolution_channels() + s.delta_value_dim(),
                                                2 * s.attention_dim() + 2 * s.kv_dim())));
  carver.take(w.gates, rows * size(2 * s.delta_value_heads));
  carver.take(w.mixed, rows * size(std::max(s.delta_value_dim(), s.attention_dim())));
  carver.take(w.delta, same_model(s, demo) ? delta_prefill_workspace<demo>(chunk)
                                           : delta_prefill_workspace<qwen36_35b>(chunk));
  carver.take(w.router, rows * size(s.experts + 1));
  carver.take(w.routes, routes_bytes(chunk, s.experts));
  carver.take(w.inner, rows * top * size(s.expert_hidden));
  carver.take(w.answers, rows * top * size(s.hidden));
  carver.take(w.shared_inner, rows * size(s.shared_expert_hidden));
  carver.take(w.shared_answers, rows * size(s.hidden));
  return w;
}

}  // namespace

int prefill_chunk_tokens(int context) {
  // At least two grains, so that a prompt can be cut.
  const int whole = (context + prefill_grain_tokens - 1) / prefill_grain_tokens * prefill_grain_tokens;
  return std::clamp(whole, 2 * prefill_grain_tokens, most_chunk);
}

std::size_t prefill_bytes(const Shape& shape, int context) {
  Carver counter(nullptr);
  carve(counter, shape, prefill_chunk_tokens(context));
  return counter.used();
}

template <class Model>
Prefill<Model>::Prefill(const DeviceWeights& weights, const Sequences& sequences, int context,
                        cudaStream_t stream)
    : weights_(weights),
      sequences_(sequences),
      chunk_(prefill_chunk_tokens(context)),
      attention_(attention_kernel()),
      delta_kernel_(delta_kernel()),
      stream_(stream),
      memory_(prefill_bytes(Model::shape, context)) {
  // Rows behind the last token are multiplied too, and thrown away: they must be numbers.
  check(cudaMemsetAsync(memory_.data(), 0, memory_.bytes(), stream), "clearing the workspace");
  Carver carver(memory_.data());
  const Workspace w = carve(carver, Model::shape, chunk_);
  tokens_ = w.tokens;
  x_ = w.x;
  normed_ = w.normed;
  projected_ = w.projected;
  gates_ = w.gates;
  mixed_ = w.mixed;
  delta_ = w.delta;
  router_ = w.router;
  routes_ = carve_routes(w.routes, chunk_, Model::shape.experts);
  inner_ = w.inner;
  answers_ = w.answers;
  shared_inner_ = w.shared_inner;
  shared_answers_ = w.shared_answers;
}

template <class Model>
const float* Prefill<Model>::run(int slot, int position, std::span<const Token> tokens) {
  const auto count = static_cast<int>(tokens.size());
  check(cudaMemcpyAsync(tokens_, tokens.data(), tokens.size_bytes(), cudaMemcpyHostToDevice, stream_),
        "passing tokens");
  embed_kernel<<<static_cast<unsigned>(count), Model::shape.hidden / codes_of_word, 0, stream_>>>(
      weights_.embedding, tokens_, x_);
  check(cudaGetLastError(), "launching a kernel");
  rms_norm(x_, weights_.layers.front().input_norm, Model::shape.hidden, count, normed_.high, stream_);
  for (int index = 0; index < static_cast<int>(weights_.layers.size()); ++index)
    layer(index, slot, position, count);
  return x_ + (tokens.size() - 1) * size(Model::shape.hidden);
}

template <class Model>
void Prefill<Model>::layer(int index, int slot, int position, int tokens) {
  constexpr Shape S = Model::shape;
  const DeviceLayer& w = weights_.layers[size(index)];
  const int attention_before = index / Shape::attention_interval;
  // x += mixer(norm(x)); the layer before has left its norm in normed_
  if (Shape::is_attention(index)) {
    project(w.in, normed_.high, tokens,
            {.y = projected_, .stride = w.in.rows, .tail = nullptr, .split = w.in.rows}, stream_);
    attention_prefill<S>({.projected = projected_,
                          .stride = w.in.rows,
                          .query_norm = w.q_norm,
                          .key_norm = w.k_norm,
                          .pages = sequences_.pages(slot),
                          .attention_layer = attention_before,
                          .tokens = tokens,
                          .position = position,
                          .y = mixed_},
                         attention_, stream_);
  } else {
    constexpr int split = S.convolution_channels() + S.delta_value_dim();
    project(w.in, normed_.high, tokens, {.y = projected_, .stride = split, .tail = gates_, .split = split},
            stream_);
    const int delta_layer = index - attention_before;
    delta_prefill<S>({.projected = projected_,
                      .stride = split,
                      .gates = gates_,
                      .convolution = w.convolution,
                      .a_log = w.a_log,
                      .dt_bias = w.dt_bias,
                      .norm = w.norm,
                      .state = sequences_.recurrent_of(slot) + size(delta_layer) * recurrent_elements<S>(),
                      .window = sequences_.windows_of(slot) + size(delta_layer) * window_elements<S>(),
                      .tokens = tokens,
                      .position = position,
                      .y = mixed_,
                      .workspace = delta_},
                     delta_kernel_, stream_);
  }
  project_add(w.out, mixed_, tokens, x_, stream_);
  // x += experts(norm(x))
  rms_norm_split(x_, w.post_attention_norm, S.hidden, tokens, normed_, stream_);
  experts(w, tokens);
  const bool last = index + 1 == static_cast<int>(weights_.layers.size());
  const float* const next_gain = last ? weights_.norm : weights_.layers[size(index + 1)].input_norm;
  combine<S>({.experts = answers_,
              .shared = shared_answers_,
              .positions = routes_.positions,
              .shares = routes_.shares,
              .logits = router_},
             tokens, x_, next_gain, normed_.high, stream_);
}

template <class Model>
void Prefill<Model>::experts(const DeviceLayer& w, int tokens) {
  const auto follow = [](cudaStream_t follower, const Event& event, cudaStream_t leader) {
    check(cudaEventRecord(event.get(), leader), "ordering streams");
    check(cudaStreamWaitEvent(follower, event.get()), "ordering streams");
  };
  follow(side_.get(), forked_, stream_);
  project_swiglu(w.shared_gate_up, normed_.high, tokens, shared_inner_, side_.get());
  project_answers(w.shared_down, shared_inner_, tokens, shared_answers_, side_.get());
  router_logits(w.router, normed_, tokens, router_, stream_);
  route(router_, tokens, Model::shape.experts, routes_, stream_);
  experts_swiglu(w.expert_gate_up, normed_.high, routes_.as_tiles(), inner_, stream_);
  experts_answers(w.expert_down, inner_, routes_.as_tiles(), answers_, stream_);
  follow(stream_, joined_, side_.get());
}

template class Prefill<Qwen36>;
template class Prefill<Demo>;

}  // namespace calla::cuda
