// How the slots draw their next tokens: their sampling state, in memory that the GPU shares, the dispatches
// of a step, and the records through which the host learns what was drawn.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "metal/device.h"
#include "metal/kernels/sample_arguments.h"
#include "model/sampling.h"

namespace calla::metal {

/// What a row's draw gave.
struct DrawnRow {
  bool has_token = false;  // else the row has no slot, or one that had ended
  bool fault = false;      // a logit was not finite; the slot has ended
  SampledToken sampled;
};

class SampleSlots {
 public:
  SampleSlots(Device& device, int slots, int vocabulary);

  /// The memory that it allocates.
  static std::size_t device_bytes(int slots, int vocabulary);

  /// Backend::set_sampling, but for SlotState. To be called while no pass is under way.
  void set(int slot, const SamplingParams& params, std::span<const Token> prompt);

  /// Draws a token for each row's slot that has not ended: SlotState::token, draws and ended change. A slot
  /// below 0 is none. `logits` [slots][vocabulary]; `peaks`, Peak [slots][vocabulary / head_rows], of which
  /// one is not finite if one of its logits is not; `states`, SlotState [slots]. Barriers must come before
  /// and after it.
  void encode(Pass& pass, std::span<const int> slots, std::uint32_t step, const View& logits,
              const View& peaks, const View& states);
  /// How many levels of the pass that takes.
  int levels(std::span<const int> slots) const;

  /// What row `row` of step `step` gave. To be called when its pass is done, and before the pass of step +
  /// record_steps is encoded.
  DrawnRow read(std::uint32_t step, int row) const;

 private:
  struct StepRow {
    int slot = -1;
    int alternatives = -1;  // to be reported; -1: not even the token's own log-probability
  };

  void set_biases(int slot, const SamplingParams& params);
  std::span<const calla_kernels::SlotSampling> sampling() const;
  std::size_t ring(std::uint32_t step) const { return step % calla_kernels::record_steps; }

  int slots_;
  int vocabulary_;
  std::size_t bias_stride_;
  std::unique_ptr<Buffer> sampling_;     // SlotSampling [slots]
  std::unique_ptr<Buffer> biases_;       // TokenBias [slots][bias_stride]
  std::unique_ptr<Buffer> counts_;       // uint32 [slots][vocabulary]: how often the output has a token
  std::unique_ptr<Buffer> prompts_;      // uint32 [slots][vocabulary / 32] bits: whether the prompt has it
  std::unique_ptr<Buffer> adjusted_;     // float [slots][vocabulary]
  std::unique_ptr<Buffer> group_peaks_;  // float [slots][groups], as the next two
  std::unique_ptr<Buffer> group_sums_;
  std::unique_ptr<Buffer> raw_sums_;
  std::unique_ptr<Buffer> records_;  // SampleRecord [record_steps][slots]
  std::unique_ptr<Buffer> reports_;  // SampleReport [record_steps][slots]
  std::array<std::vector<StepRow>, calla_kernels::record_steps> rows_;
  Device& device_;

  std::unique_ptr<Pipeline> greedy_;
  std::unique_ptr<Pipeline> scan_;
  std::unique_ptr<Pipeline> draw_;
  std::unique_ptr<Pipeline> report_;
};

}  // namespace calla::metal
