// Decode steps as graphs: everything between two tokens is one launch.
#pragma once
#include <array>
#include <functional>
#include <span>

#include "base/token.h"
#include "cuda/decode.h"
#include "cuda/device.h"
#include "cuda/sequence.h"

namespace calla::cuda {

/// What a step does before its forward pass: it draws the rows' tokens, each of a slot, or takes those it is
/// told, all of one.
enum class StepKind { drawn, given };

/// What a step is told of its rows.
struct GivenRows {
  int slots[most_rows];   // -1: none
  int tokens[most_rows];  // from here on where they are of one slot
  int behind[most_rows];
  int end;  // the slot's positions with them
};

/// The bytes a Decoder allocates.
std::size_t decoder_bytes(const Shape& shape);

template <class Model>
class Decoder {
 public:
  /// Adds the kernels that draw to a stream under capture. They read the slots of the rows, and write their
  /// tokens and whether they run.
  using Draw = std::function<void(int rows, cudaStream_t stream)>;

  /// Weights and sequences must outlive it. `positions`: [slots] in device memory.
  Decoder(const DeviceWeights& weights, const Sequences& sequences, int* positions, cudaStream_t stream);

  int* slots() const { return given_.data()->slots; }    // [most_rows] in device memory
  int* tokens() const { return given_.data()->tokens; }  // [most_rows]
  int* active() const { return active_.data(); }         // [most_rows]
  void set_draw(Draw draw) { draw_ = std::move(draw); }

  /// Draws a token for each of the slots and appends it.
  void step(std::span<const int> slots);
  /// Appends up to most_rows tokens from a position of a slot on, which has pages for them: to the bit as one
  /// by one. Returns the residual stream of the last one, [hidden] in device memory, valid until the next
  /// call.
  const float* append(int slot, int position, std::span<const Token> tokens);
  /// The logits of a slot from the residual stream of its newest token, [hidden] in device memory.
  void logits(int slot, const float* x);

 private:
  void run(StepKind kind, int rows);
  void set_rows(std::span<const int> slots);
  GraphExec capture(StepKind kind, int rows);
  void forward(const DecodeState& state, int rows);

  const DeviceWeights& weights_;
  cudaStream_t stream_;
  Draw draw_;
  DeviceArray<GivenRows> given_;
  DeviceArray<int> active_;
  DeviceArray<Groups> groups_;
  DeviceArray<float> workspace_;
  DecodeState state_;
  static constexpr std::array<int, 5> row_counts{1, 2, 4, 8, most_rows};
  std::array<std::array<GraphExec, row_counts.size()>, 2> graphs_;
};

}  // namespace calla::cuda
