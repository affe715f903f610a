#include "cpu/forward.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cpu/denormals.h"
#include "cpu/forward_stages.h"

namespace calla::cpu {
namespace {

/// Carves arrays out of a region; without one, only counts.
class Carver {
 public:
  explicit Carver(std::byte* data) : data_(data) {}

  template <class T>
  T* take(std::size_t count) {
    T* at = data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + used_);
    constexpr std::size_t line = 64;
    used_ += (count * sizeof(T) + line - 1) / line * line;
    return at;
  }
  QuantisedRows take_rows(std::size_t rows, int columns) {
    constexpr int planes = 2;
    return {.values = take<std::int8_t>(rows * size(columns * planes)),
            .factors = take<float>(rows * size(2 * columns / group)),
            .columns = columns,
            .planes = planes};
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* data_;
  std::size_t used_ = 0;
};

/// The shared workspace of a forward pass.
struct Workspace {
  float *x, *normed, *sums, *projected, *turns, *queries, *router, *partials;
  QuantisedRows normed_q, mixed_q, inner_q, shared_q;
};

Workspace carve(Carver& carver, const Shape& s, int max_rows, int slots, int context) {
  const std::size_t rows = size(max_rows);
  Workspace w{};
  w.x = carver.take<float>(rows * size(s.hidden));
  w.normed = carver.take<float>(rows * size(s.hidden));
  w.sums = carver.take<float>(rows * size(s.hidden / group));
  w.projected = carver.take<float>(rows * size(projected_columns(s)));
  w.turns = carver.take<float>(rows * Shape::rotary_dim);
  w.queries = carver.take<float>(rows * size(s.attention_dim()));
  w.router = carver.take<float>(rows * size(padded(s.experts + 1)));
  w.partials =
      carver.take<float>(size(slots) * size(s.attention_heads) * size(kv_blocks(context)) * state_floats);
  w.normed_q = carver.take_rows(rows, s.hidden);
  w.mixed_q = carver.take_rows(rows, mixed_columns(s));
  w.inner_q = carver.take_rows(rows * top, s.expert_hidden);
  w.shared_q = carver.take_rows(rows, s.shared_expert_hidden);
  return w;
}

}  // namespace

Sequence::Sequence(const Shape& shape)
    : kv(shape.attention_layers() * shape.kv_heads),
      recurrent_size(size(shape.delta_value_heads) * delta_dim * delta_dim),
      window_size(size(Shape::convolution_taps - 1) * size(shape.convolution_channels())),
      states(size(shape.delta_layers()) * recurrent_size * sizeof(float)),
      windows(size(shape.delta_layers()) * window_size * sizeof(float)) {}

std::uint64_t workspace_bytes(const Shape& shape, int max_rows, int slots, int context) {
  Carver counter(nullptr);
  carve(counter, shape, max_rows, slots, context);
  return counter.used();
}

template <Shape S>
Forward<S>::Forward(const PackedWeights& weights, const KernelTable& kernels, ThreadTeam& team, int max_rows,
                    int slots, int context)
    : weights_(weights),
      kernels_(kernels),
      team_(team),
      max_rows_(max_rows),
      memory_(workspace_bytes(S, max_rows, slots, context)),
      routes_(size(max_rows)),
      identity_(size(max_rows * top)),
      item_rows_(size(max_rows * top)),
      item_shares_(size(max_rows * top)),
      expert_begin_(size(S.experts + 1)),
      shared_shares_(size(max_rows)) {
  Carver carver(memory_.data());
  const Workspace w = carve(carver, S, max_rows, slots, context);
  x_ = w.x;
  normed_ = w.normed;
  sums_ = w.sums;
  projected_ = w.projected;
  turns_ = w.turns;
  queries_ = w.queries;
  router_ = w.router;
  partials_ = w.partials;
  normed_q_ = w.normed_q;
  mixed_q_ = w.mixed_q;
  inner_q_ = w.inner_q;
  shared_q_ = w.shared_q;
  std::iota(identity_.begin(), identity_.end(), 0);
  for (int member = 0; member < team.size(); ++member)
    scratch_.push_back(std::make_unique<Scratch>(max_rows));
}

template <Shape S>
Forward<S>::~Forward() = default;

template <Shape S>
std::size_t Forward<S>::projected_stride() const {
  return size(projected_columns(S));
}

template <Shape S>
void Forward<S>::run(std::span<const Segment> segments, Precision precision) {
  for (const Segment& segment : segments) {
    Sequence& sequence = *segment.sequence;
    sequence.kv.reserve(sequence.position, sequence.position + static_cast<int>(segment.tokens.size()));
  }
  plan_pass(segments);
  normed_q_.planes = precision == Precision::one_plane ? 1 : 2;
  team_.run([&](TeamMember& member) {
    const FlushDenormals flush;
    embed(member);
    for (int index = 0; index < static_cast<int>(weights_.layers.size()); ++index) layer(member, index);
  });
  for (const Segment& segment : segments)
    segment.sequence->position += static_cast<int>(segment.tokens.size());
}

template <Shape S>
void Forward<S>::plan_pass(std::span<const Segment> segments) {
  segments_ = segments;
  rows_.clear();
  first_row_.clear();
  tasks_.clear();
  single_rows_ = 0;
  int partial = 0;
  for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
    const int position = segments[size(s)].sequence->position;
    const int count = static_cast<int>(segments[size(s)].tokens.size());
    const int first = static_cast<int>(rows_.size());
    first_row_.push_back(first);
    for (int t = 0; t < count; ++t) rows_.push_back({segments[size(s)].tokens[size(t)], position + t, s});
    if (count == 1) {
      ++single_rows_;
      for (int h = 0; h < S.kv_heads; ++h) {
        for (int block = 0; block < kv_blocks(position + 1); ++block, ++partial)
          tasks_.push_back(
              {.segment = s, .kv_head = h, .row = first, .rows = 1, .block = block, .partial = partial});
      }
      continue;
    }
    // The longest ones first, so that the threads end together.
    for (int t = (count - 1) / query_tokens * query_tokens; t >= 0; t -= query_tokens) {
      for (int h = 0; h < S.kv_heads; ++h) {
        tasks_.push_back({.segment = s,
                          .kv_head = h,
                          .row = first + t,
                          .rows = std::min(query_tokens, count - t),
                          .block = -1,
                          .partial = -1});
      }
    }
  }
  assert(static_cast<int>(rows_.size()) <= max_rows_);
}

template <Shape S>
void Forward<S>::layer(TeamMember& member, int index) {
  const PackedLayer& w = weights_.layers[size(index)];
  const int attention_before = index / Shape::attention_interval;
  Scratch& scratch = *scratch_[size(member.index())];

  // x += mixer(norm(x))
  norm_rows(member, w.input_norm, false);
  const std::span<const std::int32_t> all = std::span(identity_).first(rows_.size());
  product(member.share(w.in.count), w.in, normed_q_, all, scratch,
          [&](int panel, int first, int count, const float* tile) {
            for (int i = 0; i < count; ++i)
              std::memcpy(projected_ + size(first + i) * projected_stride() + size(panel * panel_rows),
                          tile + i * panel_rows, panel_rows * sizeof(float));
          });
  member.barrier();
  if (Shape::is_attention(index)) {
    attention_heads(member, w, attention_before);
    attend(member, attention_before);
    if (single_rows_ > 0) merge_blocks(member);
  } else {
    delta_heads(member, w, index - attention_before);
  }
  QuantisedRows mixed = mixed_q_;
  mixed.columns = Shape::is_attention(index) ? S.attention_dim() : S.delta_value_dim();
  add_product(member, w.out, mixed);

  // x += experts(norm(x))
  norm_rows(member, w.post_attention_norm, true);
  route_and_shared(member, w);
  choose_experts(member);
  expert_gate_up(member, w);
  expert_down(member, w);
}

template <Shape S>
void Forward<S>::embed(TeamMember& member) {
  const Range mine = member.share(static_cast<int>(rows_.size()));
  for (int row = mine.first; row < mine.last; ++row) {
    const Row& r = rows_[size(row)];
    dequantize_row(weights_.embedding, r.token, std::span(x_ + size(row) * S.hidden, size(S.hidden)));
    // Angles in double: at position 262,143 a float angle is off by up to 0.016.
    constexpr int half = Shape::rotary_dim / 2;
    float* turn = turns_ + size(row) * Shape::rotary_dim;
    for (int j = 0; j < half; ++j) {
      const double angle = r.position * std::pow(rope_theta, -static_cast<double>(j) / half);
      turn[j] = static_cast<float>(std::cos(angle));
      turn[half + j] = static_cast<float>(std::sin(angle));
    }
  }
  if (member.index() == 0) next_task_.store(0, std::memory_order_relaxed);
  member.barrier();
}

template <Shape S>
void Forward<S>::norm_rows(TeamMember& member, const std::vector<float>& gain, bool keep) {
  constexpr int groups = S.hidden / group;
  const Range mine = member.share(static_cast<int>(rows_.size()));
  for (int row = mine.first; row < mine.last; ++row) {
    float* normed = normed_ + size(row) * S.hidden;
    kernels_.rms_norm(x_ + size(row) * S.hidden, gain.data(), S.hidden, normed);
    kernels_.quantise(normed, groups, normed_q_.planes,
                      normed_q_.values + size(row) * size(S.hidden * normed_q_.planes),
                      normed_q_.factors + size(row) * 2 * groups);
    if (keep) kernels_.group_sums(normed, S.hidden, sums_ + size(row) * groups);
  }
  member.barrier();
}

template <Shape S>
void Forward<S>::add_product(TeamMember& member, const Panels& w, QuantisedRows x) {
  const std::span<const std::int32_t> all = std::span(identity_).first(rows_.size());
  product(member.share(w.count), w, x, all, *scratch_[size(member.index())],
          [&](int panel, int first, int count, const float* tile) {
            kernels_.scatter_add(tile, all.data() + first, nullptr, count, x_ + panel * panel_rows, S.hidden);
          });
  member.barrier();
}

template <Shape S>
void Forward<S>::logits(std::span<const int> rows, std::span<float* const> out) {
  constexpr int groups = S.hidden / group;
  normed_q_.planes = 2;
  team_.run([&](TeamMember& member) {
    const FlushDenormals flush;
    const Range mine = member.share(static_cast<int>(rows.size()));
    for (int i = mine.first; i < mine.last; ++i) {
      float* normed = normed_ + size(i) * S.hidden;
      kernels_.rms_norm(x_ + size(rows[size(i)]) * S.hidden, weights_.norm.data(), S.hidden, normed);
      kernels_.quantise(normed, groups, 2, normed_q_.values + size(i) * 2 * S.hidden,
                        normed_q_.factors + size(i) * 2 * groups);
    }
    member.barrier();
    product(member.share(weights_.head.count), weights_.head, normed_q_,
            std::span(identity_).first(rows.size()), *scratch_[size(member.index())],
            [&](int panel, int first, int count, const float* tile) {
              for (int i = 0; i < count; ++i)
                std::memcpy(out[size(first + i)] + panel * panel_rows, tile + i * panel_rows,
                            panel_rows * sizeof(float));
            });
  });
}

template class Forward<qwen36_35b>;
template class Forward<demo>;

}  // namespace calla::cpu
