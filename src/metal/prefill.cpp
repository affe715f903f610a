#include "metal/prefill.h"

#include <algorithm>
#include <cassert>

#include <fmt/format.h>

#include "metal/encode.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/mixer_arguments.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/sample_arguments.h"

namespace calla::metal {
namespace {

using namespace calla_kernels;

static_assert(prefill_chunk_tokens == static_cast<int>(prefill_tokens));

// Tokens times layers of a pass: some ten milliseconds of work on the slower GPUs, which leaves the screen
// alone.
constexpr int pass_work = 512;

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }
std::uint32_t count(int extent) { return static_cast<std::uint32_t>(extent); }
std::uint32_t over(std::uint32_t total, std::uint32_t each) { return calla_kernels::tiles(total, each); }

int delta_projected(const Shape& s) {
  return s.convolution_channels() + s.delta_value_dim() + 2 * s.delta_value_heads;
}
int attention_projected(const Shape& s) { return 2 * s.attention_dim() + 2 * s.kv_dim(); }

}  // namespace

Prefill::Scratch::Scratch(Carver& carver, const Shape& s) {
  constexpr std::size_t tokens = prefill_tokens;
  const auto rows = [&](int columns) { return carver.take<float>(tokens * size(columns)); };
  h = rows(s.hidden);
  x = rows(s.hidden);
  projected = rows(std::max(delta_projected(s), attention_projected(s)));
  qkv = rows(std::max(s.convolution_channels(), s.attention_dim()));
  gates = rows(2 * s.delta_value_heads);
  overlaps = rows(s.delta_key_heads);
  mixed = rows(std::max(s.delta_value_dim(), s.attention_dim()));
  router_logits = rows(s.experts + 1);
  routes = carver.take<Route>(tokens);
  pairs = carver.take<std::uint32_t>(tokens * size(Shape::experts_per_token));
  blocks = carver.take<Block>(group_blocks(prefill_tokens, 16, count(s.experts)));
  inner = rows(Shape::experts_per_token * s.expert_hidden);
  pair_out = rows(Shape::experts_per_token * s.hidden);
  shared_inner = rows(s.shared_expert_hidden);
  shared_out = rows(s.hidden);
}

std::size_t Prefill::scratch_bytes(const Shape& shape) {
  Carver carver;
  const Scratch scratch(carver, shape);
  return carver.used() + 2 * sizeof(std::uint32_t) * prefill_tokens;
}

/// What the stages of one call have in common.
struct Prefill::Piece {
  int slot;
  unsigned tokens;
  unsigned position;  // of the first token
};

Prefill::Prefill(Device& device, const Shape& shape, const DeviceWeights& weights, const Sequences& sequences,
                 View turns, bool tensor_units)
    : device_(device),
      shape_(shape),
      weights_(weights),
      sequences_(sequences),
      turns_(turns),
      tensor_units_(tensor_units),
      tokens_{device.allocate(sizeof(std::uint32_t) * prefill_tokens, Hazards::tracked),
              device.allocate(sizeof(std::uint32_t) * prefill_tokens, Hazards::tracked)},
      memory_(device.allocate(scratch_bytes(shape), Hazards::tracked)),
      scratch_([&] {
        Carver carver(*memory_);
        return Scratch(carver, shape);
      }()),
      embed_rows_(device.pipeline("embed_rows", row_threads)),
      norm_rows_(device.pipeline("norm_rows", row_threads)),
      project_(tiles(device, "gemm_project", 32, 64, "gemm_tensor_project")),
      product_(tiles(device, "gemm", 32, 64, "gemm_tensor")),
      add_product_(tiles(device, "gemm_add", 32, 64, "gemm_tensor_add")),
      delta_prepare_(device.pipeline("delta_prepare", delta_prepare_threads)),
      delta_window_(device.pipeline("delta_window", delta_window_threads)),
      delta_scan_(device.pipeline("delta_scan", delta_scan_threads)),
      delta_gate_(device.pipeline("delta_gate", delta_gate_threads)),
      attention_prepare_(device.pipeline("attention_prepare", attention_prepare_threads)),
      attention_prefill_(device.pipeline("attention_prefill", attention_prefill_threads)),
      router_(device.pipeline("gemm_router", gemm_threads)),
      route_(device.pipeline("route", route_threads)),
      sort_pairs_(device.pipeline("sort_pairs", sort_threads)),
      experts_gate_up_(tiles(device, "experts_gate_up", 16, 32, "experts_gate_up_tensor")),
      experts_down_(tiles(device, "experts_down_rows", 16, 32, "experts_down_rows_tensor")),
      shared_gate_up_(tiles(device, "shared_gate_up", 32, 64, "shared_gate_up_tensor")),
      combine_(device.pipeline("combine", row_threads)),
      place_slot_(device.pipeline("place_slot", advance_threads)) {}

Prefill::Tiles Prefill::tiles(Device& device, std::string_view kernel, unsigned low, unsigned high,
                              std::string_view tensor) const {
  Tiles tiles;
  if (tensor_units_) {
    // For any number of rows: it rounds otherwise than the others do.
    tiles.high = device.pipeline(tensor, gemm_threads);
  } else {
    tiles.low = device.pipeline(fmt::format("{}_{}", kernel, low), gemm_threads);
    tiles.high = device.pipeline(fmt::format("{}_{}", kernel, high), gemm_threads);
  }
  return tiles;
}

const std::unique_ptr<Pipeline>& Prefill::dense(const Tiles& kernel, unsigned rows) const {
  return gemm_tile(rows, tensor_units_) == 64 ? kernel.high : kernel.low;
}

void Prefill::run(int slot, int position, std::span<const Token> tokens, const Head& head,
                  const Commit& commit) {
  assert(!tokens.empty() && tokens.size() <= prefill_tokens);
  const Piece piece{slot, static_cast<unsigned>(tokens.size()), count(position)};
  const std::unique_ptr<Buffer>& ids = tokens_.at(next_tokens_);
  next_tokens_ = (next_tokens_ + 1) % tokens_.size();
  std::transform(tokens.begin(), tokens.end(), ids->as<std::uint32_t>().begin(),
                 [](Token token) { return static_cast<std::uint32_t>(token); });

  const int layers_a_pass = std::max(1, pass_work / static_cast<int>(piece.tokens));
  std::unique_ptr<Pass> pass = device_.begin();
  // The kernels of a prompt do not look at the slot's position; those of the head do at whether it has ended.
  const PlaceArguments place{count(slot), piece.position + piece.tokens, 0};
  dispatch(*pass, place_slot_, {}, sequences_.slot_states(), place);
  dispatch(*pass, embed_rows_, {piece.tokens}, weights_.embedding, ids, scratch_.h);
  pass->barrier();
  dispatch(*pass, norm_rows_, {piece.tokens}, scratch_.h, weights_.layers.front().input_norm, scratch_.x);
  for (int layer = 0; layer < shape_.layers; ++layer) {
    if (layer > 0 && layer % layers_a_pass == 0) {
      commit(std::move(pass));
      pass = device_.begin();
    } else {
      pass->barrier();
    }
    Shape::is_attention(layer) ? encode_attention(*pass, piece, layer) : encode_delta(*pass, piece, layer);
    encode_experts(*pass, piece, layer);
  }
  if (head) {
    pass->barrier();
    head(*pass, scratch_.h);
  }
  commit(std::move(pass));
}

void Prefill::encode_delta(Pass& pass, const Piece& piece, int layer) const {
  const LayerViews& w = weights_.layers[size(layer)];
  const int delta_layer = layer - layer / Shape::attention_interval;
  const View window =
      sequences_.windows(delta_layer) + size(piece.slot) * sequences_.window_stride() * sizeof(float);
  const View state =
      sequences_.states(delta_layer) + size(piece.slot) * sequences_.state_stride() * sizeof(float);
  const DeltaPrefillArguments args{piece.tokens, piece.position};
  const std::uint32_t heads = count(shape_.delta_value_heads);

  encode_project(pass, piece, w);
  dispatch(pass, delta_prepare_,
           {(count(shape_.delta_key_heads) + heads) / 4, over(piece.tokens, delta_prepare_tokens)},
           scratch_.projected, window, w.convolution, w.a_log, w.dt_bias, scratch_.qkv, scratch_.gates,
           scratch_.overlaps, args);
  pass.barrier();
  dispatch(pass, delta_scan_, {heads * delta_blocks / 2}, scratch_.qkv, scratch_.gates, scratch_.overlaps,
           state, scratch_.mixed, args);
  dispatch(pass, delta_window_, {count(shape_.convolution_channels()) / 4 / delta_window_threads},
           scratch_.projected, window, args);
  pass.barrier();
  dispatch(pass, delta_gate_, {heads / 4, piece.tokens}, scratch_.projected, w.norm, scratch_.mixed);
  pass.barrier();
  encode_out(pass, piece, w, shape_.delta_value_dim());
}

void Prefill::encode_attention(Pass& pass, const Piece& piece, int layer) const {
  const LayerViews& w = weights_.layers[size(layer)];
  const auto slabs = sequences_.pool().slabs();
  const View pages =
      sequences_.page_table() + size(piece.slot) * sequences_.max_pages() * sizeof(std::uint32_t);
  const AttentionPrefillArguments args{piece.tokens, piece.position, count(layer / Shape::attention_interval),
                                       sequences_.pool().pages_per_slab(),
                                       static_cast<unsigned>(sequences_.pool().page_bytes() / 2)};

  encode_project(pass, piece, w);
  dispatch(pass, attention_prepare_,
           {(count(shape_.attention_heads) + 2 * count(shape_.kv_heads)) / 2, piece.tokens},
           scratch_.projected, w.q_norm, w.k_norm, turns_, pages, slabs[0], slabs[1], slabs[2], slabs[3],
           scratch_.qkv, args);
  pass.barrier();
  dispatch(pass, attention_prefill_, {over(piece.tokens, attention_tile_tokens), count(shape_.kv_heads)},
           scratch_.qkv, scratch_.projected, pages, slabs[0], slabs[1], slabs[2], slabs[3], scratch_.mixed,
           args);
  pass.barrier();
  encode_out(pass, piece, w, shape_.attention_dim());
}

/// All first products of a mixer side by side.
void Prefill::encode_project(Pass& pass, const Piece& piece, const LayerViews& w) const {
  GemmProjectArguments args{piece.tokens, count(shape_.hidden), {}};
  unsigned end = 0;
  for (std::size_t i = 0; i < w.project.size(); ++i) args.ends[i] = end += count(w.project.at(i).rows);
  dispatch(pass, dense(project_, piece.tokens),
           {over(piece.tokens, gemm_tile(piece.tokens, tensor_units_)), over(end, gemm_columns)},
           w.project[0], w.project[1], w.project[2], w.project[3], scratch_.x, scratch_.projected, args);
  pass.barrier();
}

/// h = h + the mixer's last product; x = norm(h).
void Prefill::encode_out(Pass& pass, const Piece& piece, const LayerViews& w, int columns) const {
  encode_product(pass, piece, add_product_, w.out, scratch_.mixed, columns, shape_.hidden, scratch_.h);
  pass.barrier();
  dispatch(pass, norm_rows_, {piece.tokens}, scratch_.h, w.post_attention_norm, scratch_.x);
  pass.barrier();
}

void Prefill::encode_product(Pass& pass, const Piece& piece, const Tiles& kernel, const MatrixView& matrix,
                             const View& x, int columns, int outputs, const View& out) const {
  const GemmArguments args{piece.tokens, count(columns), count(outputs)};
  dispatch(pass, dense(kernel, piece.tokens),
           {over(piece.tokens, gemm_tile(piece.tokens, tensor_units_)), over(count(outputs), gemm_columns)},
           matrix, x, out, args);
}

/// h = h + experts(x); x = the next layer's norm of h. A barrier must come before what follows.
void Prefill::encode_experts(Pass& pass, const Piece& piece, int layer) const {
  const LayerViews& w = weights_.layers[size(layer)];
  const bool last = layer + 1 == shape_.layers;
  const View& next_norm = last ? weights_.norm : weights_.layers[size(layer) + 1].input_norm;
  const unsigned tokens = piece.tokens;
  const unsigned experts = count(shape_.experts);
  const RowsArguments rows{tokens};
  const unsigned tile = group_tile(tokens, experts, tensor_units_);
  const SortArguments sort{tokens, tile, group_blocks(tokens, tile, experts)};
  const auto grouped = [&](const Tiles& kernel) -> const std::unique_ptr<Pipeline>& {
    return tile == 32 ? kernel.high : kernel.low;
  };

  dispatch(pass, router_, {over(tokens, 32), over(experts + 1, gemm_columns)}, w.router, w.shared_gate,
           scratch_.x, scratch_.router_logits, rows);
  dispatch(
      pass, dense(shared_gate_up_, tokens),
      {over(tokens, gemm_tile(tokens, tensor_units_)), count(shape_.shared_expert_hidden) / gate_up_columns},
      w.shared_expert_gate, w.shared_expert_up, scratch_.x, scratch_.shared_inner, rows);
  pass.barrier();
  dispatch(pass, route_, {over(tokens, route_rows)}, scratch_.router_logits, scratch_.routes, rows);
  encode_product(pass, piece, product_, w.shared_expert_down, scratch_.shared_inner,
                 shape_.shared_expert_hidden, shape_.hidden, scratch_.shared_out);
  pass.barrier();
  dispatch(pass, sort_pairs_, {}, scratch_.routes, scratch_.pairs, scratch_.blocks, sort);
  pass.barrier();
  dispatch(pass, grouped(experts_gate_up_), {sort.blocks, count(shape_.expert_hidden) / gate_up_columns},
           w.gate, w.up, scratch_.x, scratch_.pairs, scratch_.blocks, scratch_.inner);
  pass.barrier();
  dispatch(pass, grouped(experts_down_), {sort.blocks, over(count(shape_.hidden), gemm_columns)}, w.down,
           scratch_.inner, scratch_.pairs, scratch_.blocks, scratch_.pair_out);
  pass.barrier();
  dispatch(pass, combine_, {tokens}, scratch_.pair_out, scratch_.shared_out, scratch_.routes, scratch_.h,
           next_norm, scratch_.x);
}

}  // namespace calla::metal
