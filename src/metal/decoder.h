// One token for each of some slots: the forward pass as dispatches, in the model's order.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "metal/carver.h"
#include "metal/device.h"
#include "metal/kernels/arguments.h"
#include "metal/sequences.h"
#include "metal/weights.h"
#include "model/shape.h"

namespace calla::metal {

/// A slot whose token is to be computed. `position`: the tokens before it, or more, if the slot may have
/// ended.
struct DecodeRow {
  int slot = 0;
  int position = 0;
};

class Decoder {
 public:
  /// All that is named here must outlive it. `turns`: float2 [context][32], the cosine and sine of RoPE's
  /// angles.
  Decoder(Device& device, const Shape& shape, const DeviceWeights& weights, const Sequences& sequences,
          View turns, int context);

  /// The memory that it allocates.
  static std::size_t scratch_bytes(const Shape& shape, int context);

  /// Computes the last token of each slot that has not ended, up to max_rows of them: its logits and peaks,
  /// and the position goes up by one. A barrier must follow.
  void encode(Pass& pass, std::span<const DecodeRow> rows) const;
  /// The logits and peaks of a slot from the residual stream of its newest token: row `row` of `stream`,
  /// float
  /// [...][hidden]. A barrier must follow.
  void encode_head(Pass& pass, int slot, const View& stream, int row) const;

 private:
  /// A kernel for 1, 2 and 4 rows.
  using ByRows = std::array<std::unique_ptr<Pipeline>, 3>;

  struct Scratch {
    Scratch(Carver& carver, const Shape& shape, int context);
    View h;              // the residual stream, [rows][hidden]
    View u;              // h times the gain of the next norm
    View square_sums;    // [rows][hidden / square_columns]
    View projected;      // what a mixer's first products give
    View mixed;          // [rows][what the mixer's last product takes]
    View head_sums;      // [rows][delta_value_heads][delta_blocks]
    View partial;        // [rows][heads][splits][256]
    View partial_stats;  // [rows][heads][splits][2]
    View router_logits;  // [rows][experts + 1]
    View shared_inner;   // [rows][shared_expert_hidden]
    View inner;          // [rows][8][expert_hidden]
    View routes;         // Route [rows]
  };
  struct Step;

  void encode_mixer(const Step& step, int layer) const;
  void encode_experts(const Step& step, int layer) const;

  const Shape shape_;
  const DeviceWeights& weights_;
  const Sequences& sequences_;
  View turns_;
  std::unique_ptr<Buffer> memory_;
  Scratch scratch_;

  std::unique_ptr<Pipeline> embed_;
  std::unique_ptr<Pipeline> last_row_;
  ByRows project_;
  std::unique_ptr<Pipeline> delta_step_;
  ByRows delta_out_;
  std::unique_ptr<Pipeline> attention_step_;
  std::unique_ptr<Pipeline> attention_split_;
  std::unique_ptr<Pipeline> attention_combine_;
  ByRows attention_out_;
  ByRows router_;
  ByRows shared_up_;
  std::unique_ptr<Pipeline> experts_up_;
  std::unique_ptr<Pipeline> experts_down_;
  ByRows head_;
  std::unique_ptr<Pipeline> advance_;
};

}  // namespace calla::metal
