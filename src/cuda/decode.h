// One decode step: the kernels of the forward pass for up to 16 rows, a row being the newest token of a slot;
// or rows are the newest tokens of one slot, in their order.
//
// All launchers are links of a chain (launch.h) on one stream, allocate nothing and ask the host for nothing:
// which slot a row is, at what position and whether it runs stands in device memory. A row's result does not
// depend on what the other rows are.
#pragma once
#include <cstdint>

#include <cuda_runtime_api.h>

#include "cuda/decode_groups.h"
#include "cuda/models.h"
#include "cuda/state.h"
#include "cuda/upload.h"
#include "model/shape.h"

namespace calla::cuda {

/// Splits of the context that attention is spread over, for each KV head of each row: with two of them a
/// block for each SM of an H200.
inline constexpr int attention_splits = 66;

/// Sums of squares that a head of DeltaNet leaves.
inline constexpr int delta_squares = 4;

/// What a block of the kernels for more than four rows needs of shared memory. Where there is less, these
/// rows go four at a time.
inline constexpr std::size_t many_rows_memory = std::size_t{160} * 1024;

/// The arrays a step works in, all in device memory.
struct DecodeState {
  std::size_t block_memory = 0;  // the most shared memory that a block of the device gets

  bool sequence = false;  // rows are neighbouring tokens of one slot

  // Of each row
  const int* slots = nullptr;   // [most_rows]
  const int* active = nullptr;  // [most_rows]; 0: the row's slot stays as it is. Null for the head: all run
  const int* tokens = nullptr;  // [most_rows]
  const int* behind = nullptr;  // [most_rows], of a sequence: the tokens behind the row's
  // Of each slot
  int* positions = nullptr;           // [slots], the token at hand counted
  const PageTable* pages = nullptr;   // [slots]
  float* const* recurrent = nullptr;  // [slots], recurrent states of all layers
  float* const* windows = nullptr;    // [slots], convolution windows of all layers
  float* logits = nullptr;            // [slots][vocabulary]
  // Workspace
  float* x = nullptr;          // [most_rows][hidden], the residual stream
  float* turns = nullptr;      // [most_rows][64], RoPE of the token's position: 32 cosines, 32 sines
  float* projected = nullptr;  // [most_rows][projected_columns]
  float* mixed = nullptr;      // [most_rows][mixed_columns]
  float* squares =
      nullptr;  // [most_rows][delta_value_heads][delta_squares], of the mixer's output before its norm
  float* partials = nullptr;  // [most_rows][attention_heads][attention_splits][256 + 2]
  float* router = nullptr;    // [most_rows][experts + 1]
  float* inner = nullptr;     // [most_rows][8][expert_hidden]
  float* shared = nullptr;    // [most_rows][shared_expert_hidden]
  // Of steps with more than four rows
  Groups* groups = nullptr;  // which rows go to which expert
  float* answers = nullptr;  // [most_rows][8][parts of a down projection's columns][hidden]
};

template <Shape S>
constexpr int projected_columns() {
  constexpr int delta = S.convolution_channels() + S.delta_value_dim() + 2 * S.delta_value_heads;
  constexpr int attention = 2 * S.attention_dim() + 2 * S.kv_dim();
  return delta > attention ? delta : attention;
}
template <Shape S>
constexpr int mixed_columns() {
  return S.delta_value_dim() > S.attention_dim() ? S.delta_value_dim() : S.attention_dim();
}
template <Shape S>
constexpr int answer_columns() {
  return Shape::experts_per_token * DownParts<S.expert_hidden>::warps * S.hidden;
}
inline constexpr int attention_partial_floats = Shape::attention_head_dim + 2;

// Of Qwen36 and Demo:

/// x = the tokens' rows of the embedding; turns.
template <class Model>
void decode_embed(cudaStream_t stream, const EmbeddingRows& embedding, const DecodeState& state, int rows);

/// projected = in * norm(x).
template <class Model>
void decode_project(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows);

/// mixed and squares from projected; the states and windows go on by the rows' tokens. `delta_layer` counts
/// the DeltaNet layers.
template <class Model>
void decode_delta(cudaStream_t stream, const DeviceLayer& layer, int delta_layer, const DecodeState& state,
                  int rows);

/// mixed from projected; the tokens' keys and values join the pages.
template <class Model>
void decode_attention(cudaStream_t stream, const DeviceLayer& layer, int attention_layer,
                      const DecodeState& state, int rows);

/// x += out * mixed.
template <class Model>
void decode_output(cudaStream_t stream, const DeviceLayer& layer, bool is_attention, const DecodeState& state,
                   int rows);

/// x += experts(norm(x)).
template <class Model>
void decode_experts(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows);

/// logits = head * norm(x).
template <class Model>
void decode_head(cudaStream_t stream, const DeviceWeights& weights, const DecodeState& state, int rows);

}  // namespace calla::cuda
