// The sampling state of a backend's slots, and the records through which the host learns what was drawn.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cuda/device.h"
#include "cuda/sample.h"

namespace calla::cuda {

/// What a row's draw gave.
struct DrawnRow {
  bool has_token = false;  // else the row has no slot, or one that has ended
  bool fault = false;      // a logit was not finite; the slot has ended
  SampledToken sampled;    // SampledToken::slot is left at 0
};

class SampleSlots {
 public:
  /// For steps of at most `rows` rows.
  SampleSlots(int slots, int rows, int vocabulary);

  /// The device memory it takes.
  static std::size_t device_bytes(int slots, int rows, int vocabulary);

  /// Backend::set_sampling, in the order of the stream.
  void set(int slot, const SamplingParams& params, std::span<const Token> prompt, cudaStream_t stream);
  /// Sets the number of a slot's tokens, in the order of the stream; the slot has not ended.
  void place(int slot, int position, cudaStream_t stream);

  /// For launch_sample: `logits` [slots][vocabulary]; `slots`, `tokens` and `active` [rows]. The pointers
  /// stay as they are, so that a graph may hold them.
  SampleStep step(const float* logits, const int* slots, int* tokens, int* active) const;
  /// [slots] in device memory: the tokens of each slot.
  const int* positions() const { return positions_.data(); }

  /// What row `row` of step number `step` gave, if it is there; the first step that was launched is 1. It
  /// stays until record_steps more are launched.
  std::optional<DrawnRow> read(std::uint32_t step, int row) const;

 private:
  // Where a slot's next setting waits for the copy.
  struct Staging {
    PinnedArray<SlotSampling> sampling;
    PinnedArray<std::uint32_t> prompt;
    PinnedArray<TokenBias> biases;
    DeviceArray<TokenBias> device_biases;
    Event copied;
  };

  void stage_biases(Staging& staging, const SamplingParams& params, cudaStream_t stream);

  int rows_;
  int vocabulary_;
  DeviceArray<int> positions_;
  DeviceArray<int> ended_;
  DeviceArray<SlotSampling> sampling_;
  DeviceArray<std::uint32_t> counts_;
  DeviceArray<std::uint32_t> prompts_;
  DeviceArray<std::uint32_t> step_;
  DeviceArray<float> groups_;  // [4][rows][groups]
  DeviceArray<float> adjusted_;
  PinnedArray<SampleRecord> records_;
  std::vector<Staging> staging_;
};

}  // namespace calla::cuda
