#include <algorithm>

#include "cuda/decoder.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"

namespace calla::cuda {
namespace {

/// Rows with a slot run, and its sequence is longer by them.
__global__ void append_kernel(const GivenRows* given, int* active, int* positions) {
  wait_for_predecessor();
  release_successor();
  const int row = static_cast<int>(threadIdx.x);
  active[row] = given->slots[row] >= 0 ? 1 : 0;
  if (row == 0) positions[given->slots[0]] = given->end;
}

/// Arrays of a step's workspace, in floats, for `most_rows` rows.
template <class Visit>
void visit_workspace(const Shape& s, Visit visit) {
  const int delta = s.convolution_channels() + s.delta_value_dim() + 2 * s.delta_value_heads;
  const int attention = 2 * s.attention_dim() + 2 * s.kv_dim();
  visit(&DecodeState::x, s.hidden);
  visit(&DecodeState::turns, Shape::rotary_dim);
  visit(&DecodeState::projected, std::max(delta, attention));
  visit(&DecodeState::mixed, std::max(s.delta_value_dim(), s.attention_dim()));
  visit(&DecodeState::squares, s.delta_value_heads * 4);
  visit(&DecodeState::partials, s.attention_heads * attention_splits * attention_partial_floats);
  visit(&DecodeState::router, s.experts + 1);
  visit(&DecodeState::inner, Shape::experts_per_token * s.expert_hidden);
  visit(&DecodeState::shared, s.shared_expert_hidden);
  visit(&DecodeState::answers, same_model(s, demo) ? answer_columns<demo>() : answer_columns<qwen36_35b>());
}

std::size_t workspace_floats(const Shape& shape) {
  constexpr std::size_t line = 32;
  std::size_t total = 0;
  visit_workspace(shape, [&](float* DecodeState::*, int columns) {
    total += (static_cast<std::size_t>(columns) * most_rows + line - 1) / line * line;
  });
  return total;
}

}  // namespace

std::size_t decoder_bytes(const Shape& shape) {
  return workspace_floats(shape) * sizeof(float) + sizeof(Groups);
}

template <class Model>
Decoder<Model>::Decoder(const DeviceWeights& weights, const Sequences& sequences, int* positions,
                        cudaStream_t stream)
    : weights_(weights),
      stream_(stream),
      given_(1),
      active_(most_rows),
      groups_(1),
      workspace_(workspace_floats(Model::shape)) {
  // Rows that have never run hold numbers, too.
  const auto clear = [&](const auto& array) {
    check(cudaMemsetAsync(array.data(), 0, array.bytes(), stream), "clearing the workspace");
  };
  clear(workspace_);
  clear(given_);
  clear(active_);
  clear(groups_);
  float* at = workspace_.data();
  visit_workspace(Model::shape, [&](float* DecodeState::*array, int columns) {
    constexpr std::size_t line = 32;
    state_.*array = at;
    at += (static_cast<std::size_t>(columns) * most_rows + line - 1) / line * line;
  });
  state_.block_memory = most_shared_memory();
  state_.slots = slots();
  state_.active = active_.data();
  state_.tokens = tokens();
  state_.groups = groups_.data();
  state_.behind = given_.data()->behind;
  state_.positions = positions;
  state_.pages = sequences.page_tables();
  state_.recurrent = sequences.recurrent();
  state_.windows = sequences.windows();
  state_.logits = sequences.logits();
}

template <class Model>
void Decoder<Model>::step(std::span<const int> slots) {
  set_rows(slots);
  run(StepKind::drawn, static_cast<int>(slots.size()));
}

template <class Model>
const float* Decoder<Model>::append(int slot, int position, std::span<const Token> tokens) {
  const auto count = static_cast<int>(tokens.size());
  GivenRows given{};
  std::fill(std::begin(given.slots), std::end(given.slots), -1);
  std::fill_n(given.slots, count, slot);
  std::copy(tokens.begin(), tokens.end(), given.tokens);
  for (int row = 0; row < count; ++row) given.behind[row] = count - 1 - row;
  given.end = position + count;
  check(cudaMemcpyAsync(given_.data(), &given, sizeof given, cudaMemcpyHostToDevice, stream_),
        "passing tokens");
  run(StepKind::given, count);
  return state_.x + (tokens.size() - 1) * static_cast<std::size_t>(Model::shape.hidden);
}

template <class Model>
void Decoder<Model>::logits(int slot, const float* x) {
  set_rows(std::span(&slot, 1));
  if (x != state_.x)
    check(
        cudaMemcpyAsync(state_.x, x, Model::shape.hidden * sizeof(float), cudaMemcpyDeviceToDevice, stream_),
        "passing activations");
  DecodeState given = state_;
  given.active = nullptr;
  decode_head<Model>(stream_, weights_, given, 1);
}

template <class Model>
void Decoder<Model>::set_rows(std::span<const int> slots) {
  std::array<int, most_rows> rows;
  rows.fill(-1);
  std::copy(slots.begin(), slots.end(), rows.begin());
  check(cudaMemcpyAsync(this->slots(), rows.data(), sizeof rows, cudaMemcpyHostToDevice, stream_),
        "passing slots");
}

template <class Model>
void Decoder<Model>::run(StepKind kind, int rows) {
  const auto found = std::lower_bound(row_counts.begin(), row_counts.end(), rows);
  GraphExec& graph =
      graphs_.at(static_cast<std::size_t>(kind)).at(static_cast<std::size_t>(found - row_counts.begin()));
  if (graph == nullptr) graph = capture(kind, *found);
  check(cudaGraphLaunch(graph.get(), stream_), "launching a step");
}

template <class Model>
GraphExec Decoder<Model>::capture(StepKind kind, int rows) {
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a step");
  cudaGraph_t graph = nullptr;
  try {
    DecodeState state = state_;
    if (kind == StepKind::drawn) {
      draw_(rows, stream_);
    } else {
      launch_chained(stream_, {dim3(1), most_rows}, append_kernel, given_.data(), active_.data(),
                     state_.positions);
      state.sequence = rows > 1;
    }
    forward(state, rows);
    if (kind == StepKind::drawn) decode_head<Model>(stream_, weights_, state, rows);
  } catch (...) {
    // A stream that goes on recording is of no use for anything else.
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream_, &graph), "recording a step");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "preparing a step");
  return GraphExec(executable);
}

template <class Model>
void Decoder<Model>::forward(const DecodeState& state, int rows) {
  decode_embed<Model>(stream_, weights_.embedding, state, rows);
  for (int index = 0; index < static_cast<int>(weights_.layers.size()); ++index) {
    const DeviceLayer& layer = weights_.layers[static_cast<std::size_t>(index)];
    const int attention_before = index / Shape::attention_interval;
    const bool is_attention = Shape::is_attention(index);
    // x += mixer(norm(x))
    decode_project<Model>(stream_, layer, state, rows);
    if (is_attention) {
      decode_attention<Model>(stream_, layer, attention_before, state, rows);
    } else {
      decode_delta<Model>(stream_, layer, index - attention_before, state, rows);
    }
    decode_output<Model>(stream_, layer, is_attention, state, rows);
    // x += experts(norm(x))
    decode_experts<Model>(stream_, layer, state, rows);
  }
}

template class Decoder<Qwen36>;
template class Decoder<Demo>;

}  // namespace calla::cuda
