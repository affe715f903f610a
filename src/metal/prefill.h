// A prompt, or a piece of one: all its tokens through each layer, as dispatches in the model's order.
#pragma once
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "base/token.h"
#include "metal/carver.h"
#include "metal/device.h"
#include "metal/sequences.h"
#include "metal/weights.h"
#include "model/shape.h"

namespace calla::metal {

/// Backend::prefill_chunk(), at most, and prefill_grain(). No kernel's arithmetic depends on where a piece
/// begins or ends: a smaller grain would do as well, and make for pieces that do not fill the GPU.
inline constexpr int prefill_chunk_tokens = 1024;
inline constexpr int prefill_grain_tokens = 16;

class Prefill {
 public:
  /// Encodes what follows the last layer, behind a barrier: `stream` is the residual stream, float
  /// [tokens][hidden].
  using Head = std::function<void(Pass& pass, const View& stream)>;
  /// Takes a pass that is complete.
  using Commit = std::function<void(std::unique_ptr<Pass> pass)>;

  /// All that is named here must outlive it. `turns`: float2 [context][32], the cosine and sine of RoPE's
  /// angles. `tensor_units`: whether products go to those that the device has.
  Prefill(Device& device, const Shape& shape, const DeviceWeights& weights, const Sequences& sequences,
          View turns, bool tensor_units);

  /// The memory that it allocates.
  static std::size_t scratch_bytes(const Shape& shape);

  /// Appends at most prefill_chunk_tokens tokens to a slot that has `position`, and has room for them.
  /// Several passes, so that the GPU has the first while the others are encoded, and none of them takes long.
  /// All passes of the call before the last one must be done.
  void run(int slot, int position, std::span<const Token> tokens, const Head& head, const Commit& commit);

 private:
  /// A product with tiles of 32 and of 64 rows, or with the tensor units.
  struct Tiles {
    std::unique_ptr<Pipeline> low;
    std::unique_ptr<Pipeline> high;
  };
  struct Scratch {
    Scratch(Carver& carver, const Shape& shape);
    View h;          // the residual stream, [tokens][hidden]
    View x;          // after a norm, [tokens][hidden]
    View projected;  // what a mixer's first products give
    View qkv;        // DeltaNet: after the convolution; attention: the queries
    View gates;      // [tokens][delta_value_heads][2]
    View overlaps;   // [tokens][delta_key_heads]
    View mixed;      // [tokens][what the mixer's last product takes]
    View router_logits;
    View routes;
    View pairs;
    View blocks;
    View inner;         // [8 tokens][expert_hidden]
    View pair_out;      // [8 tokens][hidden]
    View shared_inner;  // [tokens][shared_expert_hidden]
    View shared_out;    // [tokens][hidden]
  };
  struct Piece;

  Tiles tiles(Device& device, std::string_view kernel, unsigned low, unsigned high,
              std::string_view tensor) const;
  const std::unique_ptr<Pipeline>& dense(const Tiles& kernel, unsigned rows) const;
  void encode_project(Pass& pass, const Piece& piece, const LayerViews& w) const;
  void encode_out(Pass& pass, const Piece& piece, const LayerViews& w, int columns) const;
  void encode_product(Pass& pass, const Piece& piece, const Tiles& kernel, const MatrixView& matrix,
                      const View& x, int columns, int outputs, const View& out) const;
  void encode_delta(Pass& pass, const Piece& piece, int layer) const;
  void encode_attention(Pass& pass, const Piece& piece, int layer) const;
  void encode_experts(Pass& pass, const Piece& piece, int layer) const;

  Device& device_;
  const Shape shape_;
  const DeviceWeights& weights_;
  const Sequences& sequences_;
  View turns_;
  bool tensor_units_;
  std::array<std::unique_ptr<Buffer>, 2> tokens_;  // in turn: the last call's may still be read
  std::size_t next_tokens_ = 0;
  std::unique_ptr<Buffer> memory_;
  Scratch scratch_;

  std::unique_ptr<Pipeline> embed_rows_;
  std::unique_ptr<Pipeline> norm_rows_;
  Tiles project_;
  Tiles product_;
  Tiles add_product_;
  std::unique_ptr<Pipeline> delta_prepare_;
  std::unique_ptr<Pipeline> delta_window_;
  std::unique_ptr<Pipeline> delta_scan_;
  std::unique_ptr<Pipeline> delta_gate_;
  std::unique_ptr<Pipeline> attention_prepare_;
  std::unique_ptr<Pipeline> attention_prefill_;
  std::unique_ptr<Pipeline> router_;
  std::unique_ptr<Pipeline> route_;
  std::unique_ptr<Pipeline> sort_pairs_;
  Tiles experts_gate_up_;
  Tiles experts_down_;
  Tiles shared_gate_up_;
  std::unique_ptr<Pipeline> combine_;
  std::unique_ptr<Pipeline> place_slot_;
};

}  // namespace calla::metal
