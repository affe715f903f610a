#include "metal/decoder.h"

#include <algorithm>
#include <cassert>

#include <fmt/format.h>

#include "metal/encode.h"
#include "metal/kernels/decode_grids.h"
#include "metal/kernels/mixer_grids.h"
#include "metal/kernels/sample_arguments.h"

namespace calla::metal {
namespace {

using namespace calla_kernels;

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }
std::uint32_t count(int extent) { return static_cast<std::uint32_t>(extent); }
std::uint32_t over(std::uint32_t total, std::uint32_t each) { return (total + each - 1) / each; }

int projected_width(const Shape& s) {
  return std::max(s.convolution_channels() + s.delta_value_dim() + 2 * s.delta_value_heads,
                  2 * s.attention_dim() + 2 * s.kv_dim());
}
int mixed_width(const Shape& s) { return std::max(s.delta_value_dim(), s.attention_dim()); }

std::array<std::unique_ptr<Pipeline>, 3> by_rows(Device& device, std::string_view kernel,
                                                 std::uint32_t threads) {
  const auto variant = [&](int rows) { return device.pipeline(fmt::format("{}_{}", kernel, rows), threads); };
  return {variant(1), variant(2), variant(4)};
}

ProjectArguments ends(const LayerViews& layer) {
  ProjectArguments args{};
  unsigned end = 0;
  for (std::size_t i = 0; i < layer.project.size(); ++i)
    args.ends[i] = end += count(layer.project.at(i).rows);
  return args;
}

}  // namespace

Decoder::Scratch::Scratch(Carver& carver, const Shape& s, int context) {
  const auto rows = [&](std::size_t columns) { return carver.take<float>(max_rows * columns); };
  const std::size_t splits = std::min<std::size_t>(max_splits, over(count(context), smallest_split));
  h = rows(size(s.hidden));
  u = rows(size(s.hidden));
  square_sums = rows(size(s.hidden) / square_columns);
  projected = rows(size(projected_width(s)));
  mixed = rows(size(mixed_width(s)));
  head_sums = rows(size(s.delta_value_heads) * delta_blocks);
  partial = rows(size(s.attention_dim()) * splits);
  partial_stats = rows(size(s.attention_heads) * splits * 2);
  router_logits = rows(size(s.experts) + 1);
  shared_inner = rows(size(s.shared_expert_hidden));
  inner = rows(size(Shape::experts_per_token * s.expert_hidden));
  routes = carver.take<Route>(max_rows);
}

std::size_t Decoder::scratch_bytes(const Shape& shape, int context) {
  Carver carver;
  const Scratch scratch(carver, shape, context);
  return carver.used();
}

/// What the stages of one pass have in common.
struct Decoder::Step {
  Pass& pass;
  std::uint32_t rows;   // 1, 2 or 4
  std::size_t variant;  // of ByRows
  StepRows slots;
  std::uint32_t longest;  // positions of the longest row, its token included
  std::uint32_t splits;   // the most that a row's context is split into: not always the longest's
};

Decoder::Decoder(Device& device, const Shape& shape, const DeviceWeights& weights, const Sequences& sequences,
                 View turns, int context)
    : shape_(shape),
      weights_(weights),
      sequences_(sequences),
      turns_(turns),
      memory_(allocate_zeros(device, scratch_bytes(shape, context))),
      scratch_([&] {
        Carver carver(*memory_);
        return Scratch(carver, shape, context);
      }()),
      embed_(device.pipeline("embed", embed_threads)),
      last_row_(device.pipeline("last_row", embed_threads)),
      project_(by_rows(device, "project", project_threads)),
      delta_step_(device.pipeline("delta_step", delta_step_threads)),
      delta_out_(by_rows(device, "delta_out", mixer_out_threads)),
      attention_step_(device.pipeline("attention_step", attention_step_threads)),
      attention_split_(device.pipeline("attention_split", attention_step_threads)),
      attention_combine_(device.pipeline("attention_combine", attention_combine_threads)),
      attention_out_(by_rows(device, "attention_out", mixer_out_threads)),
      router_(by_rows(device, "router", router_threads)),
      shared_up_(by_rows(device, "shared_up", shared_up_threads)),
      experts_up_(device.pipeline("experts_up", experts_up_threads)),
      experts_down_(device.pipeline("experts_down", experts_down_threads)),
      head_(by_rows(device, "head", head_threads)),
      advance_(device.pipeline("advance", advance_threads)) {}

void Decoder::encode(Pass& pass, std::span<const DecodeRow> rows) const {
  assert(!rows.empty() && rows.size() <= max_rows);
  Step step{pass, 0, 0, {}, 0, 0};
  while ((1U << step.variant) < rows.size()) ++step.variant;
  step.rows = 1U << step.variant;
  std::fill(std::begin(step.slots.slots), std::end(step.slots.slots), unsigned{no_slot});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    step.slots.slots[i] = count(rows[i].slot);
    const std::uint32_t positions = count(rows[i].position) + 1;
    step.longest = std::max(step.longest, positions);
    step.splits = std::max(step.splits, split_count(positions));
  }

  dispatch(pass, embed_, {over(count(shape_.hidden), embed_columns), step.rows}, weights_.embedding,
           sequences_.slot_states(), weights_.layers.front().input_norm, scratch_.h, scratch_.u,
           scratch_.square_sums, step.slots);
  pass.barrier();
  for (int layer = 0; layer < shape_.layers; ++layer) {
    encode_mixer(step, layer);
    // Nobody looks at the positions after the last mixer.
    if (layer + 1 == shape_.layers) dispatch(pass, advance_, {}, sequences_.slot_states(), step.slots);
    encode_experts(step, layer);
  }
  dispatch(pass, head_.at(step.variant), {count(shape_.vocabulary) / head_rows}, weights_.head, scratch_.u,
           scratch_.square_sums, sequences_.logits(), sequences_.peaks(), sequences_.slot_states(),
           step.slots);
}

void Decoder::encode_head(Pass& pass, int slot, const View& stream, int row) const {
  dispatch(pass, last_row_, {over(count(shape_.hidden), embed_columns)}, stream, weights_.norm, scratch_.u,
           scratch_.square_sums, count(row));
  pass.barrier();
  const StepRows slots{{count(slot), no_slot, no_slot, no_slot}};
  dispatch(pass, head_.front(), {count(shape_.vocabulary) / head_rows}, weights_.head, scratch_.u,
           scratch_.square_sums, sequences_.logits(), sequences_.peaks(), sequences_.slot_states(), slots);
}

/// x = x + mixer(norm(x)).
void Decoder::encode_mixer(const Step& step, int layer) const {
  const LayerViews& w = weights_.layers[size(layer)];
  const int attention_layers_before = layer / Shape::attention_interval;
  Pass& pass = step.pass;

  const ProjectArguments project = ends(w);
  dispatch(pass, project_.at(step.variant), {over(project.ends[3], project_rows)}, w.project[0], w.project[1],
           w.project[2], w.project[3], scratch_.u, scratch_.square_sums, scratch_.projected, project);
  pass.barrier();

  const Grid out_grid{over(count(shape_.hidden), mixer_out_rows)};
  if (!Shape::is_attention(layer)) {
    const int delta_layer = layer - attention_layers_before;
    DeltaArguments args{};
    std::copy(std::begin(step.slots.slots), std::end(step.slots.slots), std::begin(args.slots));
    args.state_stride = sequences_.state_stride();
    args.window_stride = sequences_.window_stride();
    dispatch(pass, delta_step_, {count(shape_.delta_value_heads) * delta_blocks, step.rows},
             scratch_.projected, sequences_.windows(delta_layer), sequences_.states(delta_layer),
             w.convolution, w.a_log, w.dt_bias, w.norm, sequences_.slot_states(), scratch_.mixed,
             scratch_.head_sums, args);
    pass.barrier();
    dispatch(pass, delta_out_.at(step.variant), out_grid, w.out, scratch_.mixed, scratch_.head_sums,
             scratch_.h, w.post_attention_norm, scratch_.u, scratch_.square_sums);
  } else {
    const auto slabs = sequences_.pool().slabs();
    AttentionArguments args{};
    std::copy(std::begin(step.slots.slots), std::end(step.slots.slots), std::begin(args.slots));
    args.layer = count(attention_layers_before);
    args.max_pages = sequences_.max_pages();
    args.pages_per_slab = sequences_.pool().pages_per_slab();
    args.page_stride = static_cast<unsigned>(sequences_.pool().page_bytes() / 2);
    args.splits = step.splits;
    const std::uint32_t groups = count(shape_.attention_heads) / queries_per_group;
    if (step.longest <= single_pass) {
      dispatch(pass, attention_step_, {1, groups, step.rows}, scratch_.projected, w.q_norm, w.k_norm, turns_,
               sequences_.slot_states(), sequences_.page_table(), slabs[0], slabs[1], slabs[2], slabs[3],
               scratch_.mixed, args);
    } else {
      dispatch(pass, attention_split_, {args.splits, groups, step.rows}, scratch_.projected, w.q_norm,
               w.k_norm, turns_, sequences_.slot_states(), sequences_.page_table(), slabs[0], slabs[1],
               slabs[2], slabs[3], scratch_.partial, scratch_.partial_stats, args);
      pass.barrier();
      dispatch(pass, attention_combine_, {count(shape_.attention_heads), step.rows}, scratch_.projected,
               scratch_.partial, scratch_.partial_stats, sequences_.slot_states(), scratch_.mixed, args);
    }
    pass.barrier();
    dispatch(pass, attention_out_.at(step.variant), out_grid, w.out, scratch_.mixed, scratch_.h,
             w.post_attention_norm, scratch_.u, scratch_.square_sums);
  }
  pass.barrier();
}

/// x = x + experts(norm(x)).
void Decoder::encode_experts(const Step& step, int layer) const {
  const LayerViews& w = weights_.layers[size(layer)];
  const bool last = layer + 1 == shape_.layers;
  const View& next_norm = last ? weights_.norm : weights_.layers[size(layer) + 1].input_norm;
  Pass& pass = step.pass;

  dispatch(pass, router_.at(step.variant), {over(count(shape_.experts) + 1, router_rows)}, w.router,
           w.shared_gate, scratch_.u, scratch_.square_sums, scratch_.router_logits);
  dispatch(pass, shared_up_.at(step.variant), {over(count(shape_.shared_expert_hidden), shared_up_rows)},
           w.shared_expert_gate, w.shared_expert_up, scratch_.u, scratch_.square_sums, scratch_.shared_inner);
  pass.barrier();
  dispatch(pass, experts_up_,
           {over(count(shape_.expert_hidden), experts_up_rows), Shape::experts_per_token, step.rows}, w.gate,
           w.up, scratch_.u, scratch_.square_sums, scratch_.router_logits, scratch_.inner, scratch_.routes);
  pass.barrier();
  dispatch(pass, experts_down_, {over(count(shape_.hidden), experts_down_rows), step.rows}, w.down,
           w.shared_expert_down, scratch_.inner, scratch_.shared_inner, scratch_.routes, scratch_.h,
           next_norm, scratch_.u, scratch_.square_sums);
  pass.barrier();
}

}  // namespace calla::metal
