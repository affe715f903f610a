// The forward pass of the CPU backend, in the model's order. All threads walk through it together; between
// phases that need each other's results stands a barrier.
//
// A pass takes any number of rows (tokens) of any number of sequences: decode is a row of each slot, prefill
// many rows of one. A row's result does not depend on what else is in the pass.
#pragma once
#include <array>
#include <atomic>
#include <span>
#include <vector>

#include "base/thread_team.h"
#include "base/token.h"
#include "cpu/kernels.h"
#include "cpu/kv_cache.h"
#include "cpu/memory.h"
#include "cpu/weights.h"
#include "model/shape.h"

namespace calla::cpu {

/// Everything that a sequence carries from one token to the next.
struct Sequence {
  /// The empty sequence. Recurrent states and windows are zero.
  Sequence(const Shape& shape);

  /// `layer` counts the DeltaNet layers.
  float* recurrent(int layer) const {
    return states.as<float>() + static_cast<std::size_t>(layer) * recurrent_size;
  }
  float* window(int layer) const {
    return windows.as<float>() + static_cast<std::size_t>(layer) * window_size;
  }

  int position = 0;
  KvCache kv;
  std::size_t recurrent_size;  // floats of a layer: [delta_value_heads] states as delta_scan has them
  std::size_t window_size;     // floats of a layer: [3][convolution_channels], oldest first
  Region states;               // [DeltaNet layers][recurrent_size]
  Region windows;              // [DeltaNet layers][window_size]
};

/// Consecutive tokens that a pass appends to one sequence.
struct Segment {
  Sequence* sequence;
  std::span<const Token> tokens;
};

/// How finely the inputs of the projections that follow a norm are quantised: two planes always, except in
/// long prefills, which are bound by arithmetic. All other inputs have two planes always.
enum class Precision { two_planes, one_plane };

/// The bytes that Forward<S> allocates.
std::uint64_t workspace_bytes(const Shape& shape, int max_rows, int slots, int context);

template <Shape S>
class Forward {
 public:
  /// The weights, kernels and team must outlive it.
  Forward(const PackedWeights& weights, const KernelTable& kernels, ThreadTeam& team, int max_rows, int slots,
          int context);

  ~Forward();
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

  int max_rows() const { return max_rows_; }

  /// Appends every segment's tokens to its sequence; at most max_rows() rows in all, and at most `slots`
  /// segments of one row. Throws Error, with nothing changed, when memory for keys and values is refused.
  void run(std::span<const Segment> segments, Precision precision);

  /// The logits of some rows of the last run, counted over its segments: those of rows[i] go to out[i],
  /// [vocabulary].
  void logits(std::span<const int> rows, std::span<float* const> out);

 private:
  struct Row {
    Token token;
    int position;
    int segment;
  };
  /// A unit of attention: a tile of a segment's rows over all their positions, or a single row over one block
  /// of positions, of one KV head.
  struct AttentionTask {
    int segment;
    int kv_head;
    int row;  // the first one
    int rows;
    int block;    // -1: all blocks
    int partial;  // of a single row: where its state goes
  };
  struct Route {
    std::array<int, Shape::experts_per_token> experts;  // ascending
    std::array<float, Shape::experts_per_token> shares;
  };
  struct Scratch;

  void plan_pass(std::span<const Segment> segments);
  void layer(TeamMember& member, int index);
  void embed(TeamMember& member);
  void norm_rows(TeamMember& member, const std::vector<float>& gain, bool keep);
  void delta_heads(TeamMember& member, const PackedLayer& w, int delta_layer);
  void attention_heads(TeamMember& member, const PackedLayer& w, int attention_layer);
  void attend(TeamMember& member, int attention_layer);
  void attend_tile(const AttentionTask& task, int attention_layer, Scratch& scratch);
  void attend_block(const AttentionTask& task, int attention_layer);
  void merge_blocks(TeamMember& member);
  void finish_head(int row, int head, AttentionState state);
  void route_and_shared(TeamMember& member, const PackedLayer& w);
  void choose_experts(TeamMember& member);
  void group_by_expert();
  void expert_gate_up(TeamMember& member, const PackedLayer& w);
  void expert_down(TeamMember& member, const PackedLayer& w);

  /// Rows of `x` times panels [range), a block of rows at a time; done(panel, first row, count, tile).
  template <class Done>
  void product(Range panels, const Panels& w, QuantisedRows x, std::span<const std::int32_t> rows,
               Scratch& scratch, Done done);
  /// 64 columns of an expert's inner activation, silu(gate) * up, quantised into group `unit` of rows
  /// [first_out, ...) of `out`.
  void inner_unit(const ExpertPanels& expert, int unit, std::span<const std::int32_t> rows, int first_out,
                  QuantisedRows out, Scratch& scratch);
  void add_product(TeamMember& member, const Panels& w, QuantisedRows x);

  std::size_t projected_stride() const;

  const PackedWeights& weights_;
  const KernelTable& kernels_;
  ThreadTeam& team_;
  const int max_rows_;

  // Of the pass at hand.
  std::span<const Segment> segments_;
  std::vector<Row> rows_;
  std::vector<int> first_row_;  // of each segment
  std::vector<AttentionTask> tasks_;
  std::atomic<int> next_task_ = 0;
  int single_rows_ = 0;  // segments of one row

  // Workspace, [max_rows] each.
  Region memory_;
  float* x_;          // [hidden], the residual stream
  float* normed_;     // [hidden]
  float* sums_;       // [hidden / 64]
  float* projected_;  // [projected_stride()]
  float* turns_;      // [64], RoPE: cosines, sines
  float* queries_;    // [kv head][max_rows][heads of a KV head][256]
  float* router_;     // [router rows]
  float* partials_;   // [slots][KV heads][blocks][heads of a KV head] states of 256 + 2 floats
  QuantisedRows normed_q_;
  QuantisedRows mixed_q_;
  QuantisedRows inner_q_;  // [max_rows * 8 items]
  QuantisedRows shared_q_;
  std::vector<Route> routes_;
  std::vector<std::int32_t> identity_;   // 0, 1, 2, ...
  std::vector<std::int32_t> item_rows_;  // by expert, then by row
  std::vector<float> item_shares_;
  std::vector<int> expert_begin_;  // [experts + 1], into the items
  std::vector<float> shared_shares_;
  std::vector<std::unique_ptr<Scratch>> scratch_;  // one a member
};

}  // namespace calla::cpu
