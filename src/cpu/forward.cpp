#include "cpu/forward.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cpu/denormals.h"

namespace calla::cpu {
namespace {

constexpr int group = Shape::quantization_group;
constexpr int head_dim = Shape::attention_head_dim;
constexpr int delta_dim = Shape::delta_head_dim;
constexpr int top = Shape::experts_per_token;
constexpr int tile_rows = 128;   // rows that a thread multiplies a panel with before it turns to the next
constexpr int query_tokens = 8;  // tokens whose queries walk over the keys together
constexpr int state_floats =
    head_dim + 16;  // of one row's attention state; peak and sum lie behind the output

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

int padded(int rows) { return panel_count(rows) * panel_rows; }

/// The columns of everything that a layer's first projection writes.
int projected_columns(const Shape& s) {
  return std::max(padded(s.convolution_channels() + s.delta_value_dim() + 2 * s.delta_value_heads),
                  padded(2 * s.attention_dim() + 2 * s.kv_dim()));
}
int mixed_columns(const Shape& s) { return std::max(s.delta_value_dim(), s.attention_dim()); }

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

/// The eight largest logits, the lower id first among equals, in ascending order of id; shares are the
/// softmax over the eight, which equals the softmax over all, renormalised.
void choose(const float* logits, int experts, std::array<int, top>& ids, std::array<float, top>& shares) {
  std::array<float, top> best{};
  int held = 0;
  for (int e = 0; e < experts; ++e) {
    if (held == top && !(logits[e] > best[top - 1])) continue;
    int at = std::min(held, top - 1);
    for (; at > 0 && logits[e] > best[size(at - 1)]; --at) {
      best[size(at)] = best[size(at - 1)];
      ids[size(at)] = ids[size(at - 1)];
    }
    best[size(at)] = logits[e];
    ids[size(at)] = e;
    held = std::min(held + 1, top);
  }
  const float peak = best[0];
  float total = 0;
  for (float& value : best) total += value = std::exp(value - peak);
  std::array<int, top> order{};
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return ids[size(a)] < ids[size(b)]; });
  const std::array<int, top> by_share = ids;
  for (int i = 0; i < top; ++i) {
    ids[size(i)] = by_share[size(order[size(i)])];
    shares[size(i)] = best[size(order[size(i)])] / total;
  }
}

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }
float softplus(float x) { return std::max(x, 0.0F) + std::log1p(std::exp(-std::abs(x))); }

/// Hands out units of known cost in order, so that every member gets a contiguous run of about the same cost.
class CostShare {
 public:
  CostShare(const TeamMember& member, std::int64_t total)
      : member_(member.index()), count_(member.count()), total_(std::max<std::int64_t>(total, 1)) {}

  /// Whether the next unit is this member's.
  bool take(std::int64_t cost) {
    const std::int64_t owner = (2 * passed_ + cost) * count_ / (2 * total_);
    passed_ += cost;
    return std::min<std::int64_t>(owner, count_ - 1) == member_;
  }

 private:
  std::int64_t member_;
  std::int64_t count_;
  std::int64_t total_;
  std::int64_t passed_ = 0;
};

}  // namespace

Sequence::Sequence(const Shape& shape)
    : kv(shape.attention_layers() * shape.kv_heads),
      recurrent_size(size(shape.delta_value_heads) * delta_dim * delta_dim),
      window_size(size(Shape::convolution_taps - 1) * size(shape.convolution_channels())),
      states(size(shape.delta_layers()) * recurrent_size * sizeof(float)),
      windows(size(shape.delta_layers()) * window_size * sizeof(float)) {}

/// What one thread needs for itself.
template <Shape S>
struct Forward<S>::Scratch {
  static constexpr int queries = query_tokens * S.attention_heads / S.kv_heads;

  explicit Scratch(int max_rows) : decay(size(max_rows)), beta(size(max_rows)) {}

  alignas(64) std::array<float, tile_rows * panel_rows> tile;
  alignas(64) std::array<float, tile_rows * panel_rows> second_tile;
  alignas(64) std::array<float, tile_rows * group> inner;
  alignas(64) std::array<float, queries * head_dim> attention_out;
  std::array<float, queries> peaks;
  std::array<float, queries> sums;
  std::array<std::int32_t, queries> limits;
  std::vector<float> decay;
  std::vector<float> beta;
};

namespace {
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
template <class Done>
void Forward<S>::product(Range panels, const Panels& w, QuantisedRows x, std::span<const std::int32_t> rows,
                         Scratch& scratch, Done done) {
  // The activations of a block of rows stay in second-level cache while the panels pass by.
  constexpr int block_bytes = 256 << 10;
  const int block = std::clamp(block_bytes / (x.columns * x.planes), 8, tile_rows);
  for (int first = 0; first < static_cast<int>(rows.size()); first += block) {
    const int count = std::min(block, static_cast<int>(rows.size()) - first);
    for (int panel = panels.first; panel < panels.last; ++panel) {
      kernels_.linear4(w.panel(panel), x, rows.data() + first, count, scratch.tile.data());
      done(panel, first, count, scratch.tile.data());
    }
  }
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
void Forward<S>::delta_heads(TeamMember& member, const PackedLayer& w, int delta_layer) {
  constexpr int values_per_key = S.delta_value_heads / S.delta_key_heads;
  constexpr int channels = S.convolution_channels();
  constexpr int z_column = channels;
  constexpr int a_column = z_column + S.delta_value_dim();
  constexpr int b_column = a_column + S.delta_value_heads;
  const std::size_t stride = projected_stride();
  Scratch& scratch = *scratch_[size(member.index())];

  // A key head with the value heads that use it, through all tokens of a sequence.
  const int units = S.delta_key_heads * static_cast<int>(segments_.size());
  const Range mine = member.share(units);
  for (int unit = mine.first; unit < mine.last; ++unit) {
    const int segment = unit / S.delta_key_heads;
    const int key_head = unit % S.delta_key_heads;
    const Sequence& sequence = *segments_[size(segment)].sequence;
    const int tokens = static_cast<int>(segments_[size(segment)].tokens.size());
    float* rows = projected_ + size(first_row_[size(segment)]) * stride;
    float* window = sequence.window(delta_layer);
    const auto convolve = [&](int column, int count) {
      kernels_.convolve(rows + column, stride, tokens, count, w.taps.data() + column, size(channels),
                        window + column, size(channels));
    };
    const int q = key_head * delta_dim;
    const int k = S.delta_key_dim() + key_head * delta_dim;
    convolve(q, delta_dim);
    convolve(k, delta_dim);
    for (int t = 0; t < tokens; ++t) {
      float* row = rows + size(t) * stride;
      kernels_.l2_normalise(row + q, 1.0F / std::sqrt(static_cast<float>(delta_dim)));
      kernels_.l2_normalise(row + k, 1.0F);
    }
    for (int head = key_head * values_per_key; head < (key_head + 1) * values_per_key; ++head) {
      const int v = 2 * S.delta_key_dim() + head * delta_dim;
      convolve(v, delta_dim);
      for (int t = 0; t < tokens; ++t) {
        const float* row = rows + size(t) * stride;
        scratch.decay[size(t)] =
            std::exp(-w.decay_rate[size(head)] * softplus(row[a_column + head] + w.dt_bias[size(head)]));
        scratch.beta[size(t)] = sigmoid(row[b_column + head]);
      }
      // The outputs take the place of v, column by column.
      kernels_.delta_scan(sequence.recurrent(delta_layer) + size(head) * delta_dim * delta_dim, rows + q,
                          rows + k, rows + v, stride, scratch.decay.data(), scratch.beta.data(), tokens,
                          rows + v, stride);
      for (int t = 0; t < tokens; ++t) {
        float* out = rows + size(t) * stride + v;
        kernels_.gated_norm(out, w.norm.data(), rows + size(t) * stride + z_column + head * delta_dim, out);
        const std::size_t at =
            size(first_row_[size(segment)] + t) * S.delta_value_dim() + size(head * delta_dim);
        kernels_.quantise(out, delta_dim / group, 2, mixed_q_.values + 2 * at,
                          mixed_q_.factors + 2 * at / group);
      }
    }
  }
  member.barrier();
}

template <Shape S>
void Forward<S>::attention_heads(TeamMember& member, const PackedLayer& w, int attention_layer) {
  constexpr int group_heads = S.attention_heads / S.kv_heads;
  constexpr int k_column = 2 * S.attention_dim();
  constexpr int v_column = k_column + S.kv_dim();
  constexpr float scale = 1.0F / 16.0F;  // sqrt(256)

  const Range mine = member.share(static_cast<int>(rows_.size()) * S.kv_heads);
  for (int unit = mine.first; unit < mine.last; ++unit) {
    const int row = unit / S.kv_heads;
    const int kv_head = unit % S.kv_heads;
    const Row& r = rows_[size(row)];
    float* projected = projected_ + size(row) * projected_stride();
    const float* turn = turns_ + size(row) * Shape::rotary_dim;
    float* key = projected + k_column + kv_head * head_dim;
    kernels_.rms_norm(key, w.k_norm.data(), head_dim, key);
    kernels_.rotate(key, turn);
    segments_[size(r.segment)].sequence->kv.store(
        r.position, attention_layer * S.kv_heads + kv_head, std::span(key, head_dim),
        std::span(projected + v_column + kv_head * head_dim, head_dim));
    for (int i = 0; i < group_heads; ++i) {
      float* query = queries_ + (size(kv_head * max_rows_ + row) * group_heads + size(i)) * head_dim;
      const int head = kv_head * group_heads + i;
      kernels_.rms_norm(projected + 2 * head * head_dim, w.q_norm.data(), head_dim, query);
      kernels_.rotate(query, turn);
      for (int d = 0; d < head_dim; ++d) query[d] *= scale;
    }
  }
  if (member.index() == 0) next_task_.store(0, std::memory_order_relaxed);
  member.barrier();
}

template <Shape S>
void Forward<S>::attend(TeamMember& member, int attention_layer) {
  Scratch& scratch = *scratch_[size(member.index())];
  for (;;) {
    const int next = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (next >= static_cast<int>(tasks_.size())) break;
    const AttentionTask& task = tasks_[size(next)];
    if (task.block < 0) {
      attend_tile(task, attention_layer, scratch);
    } else {
      attend_block(task, attention_layer);
    }
  }
  member.barrier();
}

template <Shape S>
void Forward<S>::attend_tile(const AttentionTask& task, int attention_layer, Scratch& scratch) {
  constexpr int group_heads = S.attention_heads / S.kv_heads;
  const KvCache& kv = segments_[size(task.segment)].sequence->kv;
  const int cached = attention_layer * S.kv_heads + task.kv_head;
  const int queries = task.rows * group_heads;
  for (int i = 0; i < queries; ++i)
    scratch.limits[size(i)] = rows_[size(task.row + i / group_heads)].position + 1;
  scratch.peaks.fill(-1e30F);
  scratch.sums.fill(0.0F);
  std::fill_n(scratch.attention_out.begin(), queries * head_dim, 0.0F);
  const AttentionState state{scratch.peaks.data(), scratch.sums.data(), scratch.attention_out.data()};

  const float* q = queries_ + size(task.kv_head * max_rows_ + task.row) * group_heads * head_dim;
  const int end = scratch.limits[size(queries - 1)];
  for (int block = 0; block < kv_blocks(end); ++block) {
    // Limits count from the block's first position; whole blocks of 32 are read.
    const int within = std::min(end - block * kv_block_positions, kv_block_positions);
    constexpr int step = 32;
    kernels_.attend(q, queries, kv.keys(block, cached), kv.values(block, cached),
                    (within + step - 1) / step * step, scratch.limits.data(), state);
    for (int i = 0; i < queries; ++i) scratch.limits[size(i)] -= kv_block_positions;
  }
  for (int i = 0; i < queries; ++i) {
    finish_head(task.row + i / group_heads, task.kv_head * group_heads + i % group_heads,
                {state.peak + i, state.sum + i, state.out + i * head_dim});
  }
}

template <Shape S>
void Forward<S>::attend_block(const AttentionTask& task, int attention_layer) {
  constexpr int group_heads = S.attention_heads / S.kv_heads;
  const KvCache& kv = segments_[size(task.segment)].sequence->kv;
  const int cached = attention_layer * S.kv_heads + task.kv_head;
  const int within =
      std::min(rows_[size(task.row)].position + 1 - task.block * kv_block_positions, kv_block_positions);
  std::array<std::int32_t, group_heads> limits{};
  limits.fill(within);
  float* out = partials_ + size(task.partial) * group_heads * state_floats;
  float* peaks = out + group_heads * head_dim;
  float* sums = peaks + group_heads;
  std::fill_n(out, group_heads * head_dim, 0.0F);
  std::fill_n(peaks, group_heads, -1e30F);
  std::fill_n(sums, group_heads, 0.0F);
  constexpr int step = 32;
  kernels_.attend(queries_ + size(task.kv_head * max_rows_ + task.row) * group_heads * head_dim, group_heads,
                  kv.keys(task.block, cached), kv.values(task.block, cached),
                  (within + step - 1) / step * step, limits.data(), {peaks, sums, out});
}

template <Shape S>
void Forward<S>::merge_blocks(TeamMember& member) {
  constexpr int group_heads = S.attention_heads / S.kv_heads;
  // The blocks of one row and KV head stand next to each other among the tasks.
  int unit = 0;
  const Range mine = member.share(single_rows_ * S.kv_heads);
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    const AttentionTask& task = tasks_[t];
    if (task.block != 0) continue;
    if (unit >= mine.first && unit < mine.last) {
      const auto state = [&](int block, int i) {
        float* out = partials_ + size(task.partial + block) * group_heads * state_floats;
        float* peaks = out + group_heads * head_dim;
        return AttentionState{peaks + i, peaks + group_heads + i, out + i * head_dim};
      };
      const int blocks = kv_blocks(rows_[size(task.row)].position + 1);
      for (int i = 0; i < group_heads; ++i) {
        for (int block = 1; block < blocks; ++block) kernels_.merge(state(0, i), state(block, i));
        finish_head(task.row, task.kv_head * group_heads + i, state(0, i));
      }
    }
    ++unit;
  }
  member.barrier();
}

template <Shape S>
void Forward<S>::finish_head(int row, int head, AttentionState state) {
  const float* gate = projected_ + size(row) * projected_stride() + size((2 * head + 1) * head_dim);
  kernels_.gate_output(state, gate, state.out);
  const std::size_t at = size(row) * S.attention_dim() + size(head * head_dim);
  kernels_.quantise(state.out, head_dim / group, 2, mixed_q_.values + 2 * at,
                    mixed_q_.factors + 2 * at / group);
}

template <Shape S>
void Forward<S>::route_and_shared(TeamMember& member, const PackedLayer& w) {
  constexpr int router_columns = (S.experts + panel_rows) / panel_rows * panel_rows;
  constexpr int units = S.shared_expert_hidden / group;
  constexpr int panel_cost = 17;    // lines a group
  constexpr int unit_cost = 8 * 9;  // four panels of gate and four of up
  const auto rows = static_cast<int>(rows_.size());
  Scratch& scratch = *scratch_[size(member.index())];
  CostShare share(member, w.router.count * panel_cost + units * unit_cost);
  for (int panel = 0; panel < w.router.count; ++panel) {
    if (!share.take(panel_cost)) continue;
    for (int first = 0; first < rows; first += tile_rows) {
      const int count = std::min(tile_rows, rows - first);
      kernels_.linear8(w.router.panel(panel), S.hidden, normed_ + size(first) * S.hidden,
                       sums_ + size(first) * (S.hidden / group), count, scratch.tile.data());
      for (int i = 0; i < count; ++i)
        std::memcpy(router_ + size(first + i) * router_columns + size(panel * panel_rows),
                    scratch.tile.data() + i * panel_rows, panel_rows * sizeof(float));
    }
  }
  for (int unit = 0; unit < units; ++unit) {
    if (share.take(unit_cost))
      inner_unit(w.shared, unit, std::span(identity_).first(rows_.size()), 0, shared_q_, scratch);
  }
  member.barrier();
}

template <Shape S>
void Forward<S>::inner_unit(const ExpertPanels& expert, int unit, std::span<const std::int32_t> rows,
                            int first_out, QuantisedRows out, Scratch& scratch) {
  constexpr int pairs = group / panel_rows;
  for (int first = 0; first < static_cast<int>(rows.size()); first += tile_rows) {
    const int count = std::min(tile_rows, static_cast<int>(rows.size()) - first);
    for (int pair = 0; pair < pairs; ++pair) {
      const int panel = 2 * (unit * pairs + pair);
      kernels_.linear4(expert.gate_up.panel(panel), normed_q_, rows.data() + first, count,
                       scratch.tile.data());
      kernels_.linear4(expert.gate_up.panel(panel + 1), normed_q_, rows.data() + first, count,
                       scratch.second_tile.data());
      kernels_.swiglu(scratch.tile.data(), scratch.second_tile.data(), count,
                      scratch.inner.data() + pair * panel_rows);
    }
    for (int i = 0; i < count; ++i) {
      const std::size_t at = size(first_out + first + i) * size(out.columns) + size(unit * group);
      kernels_.quantise(scratch.inner.data() + i * group, 1, 2, out.values + 2 * at,
                        out.factors + 2 * at / group);
    }
  }
}

template <Shape S>
void Forward<S>::choose_experts(TeamMember& member) {
  constexpr int router_columns = (S.experts + panel_rows) / panel_rows * panel_rows;
  const Range mine = member.share(static_cast<int>(rows_.size()));
  for (int row = mine.first; row < mine.last; ++row) {
    const float* logits = router_ + size(row) * router_columns;
    Route& route = routes_[size(row)];
    choose(logits, S.experts, route.experts, route.shares);
    shared_shares_[size(row)] = sigmoid(logits[S.experts]);
  }
  member.barrier();
  if (member.index() == 0) group_by_expert();
  member.barrier();
}

template <Shape S>
void Forward<S>::group_by_expert() {
  std::fill(expert_begin_.begin(), expert_begin_.end(), 0);
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    for (const int expert : routes_[row].experts) ++expert_begin_[size(expert) + 1];
  }
  std::partial_sum(expert_begin_.begin(), expert_begin_.end(), expert_begin_.begin());
  std::array<int, S.experts> next{};
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    const Route& route = routes_[row];
    for (std::size_t i = 0; i < route.experts.size(); ++i) {
      const auto expert = size(route.experts[i]);
      const auto item = size(expert_begin_[expert] + next[expert]++);
      item_rows_[item] = static_cast<std::int32_t>(row);
      item_shares_[item] = route.shares[i];
    }
  }
}

template <Shape S>
void Forward<S>::expert_gate_up(TeamMember& member, const PackedLayer& w) {
  constexpr int units = S.expert_hidden / group;
  // Reading a unit's weights costs about what multiplying four rows does.
  const auto cost = [&](int expert) {
    return expert_begin_[size(expert) + 1] - expert_begin_[size(expert)] + 4;
  };
  std::int64_t total = 0;
  for (int e = 0; e < S.experts; ++e) {
    if (cost(e) > 4) total += std::int64_t{units} * cost(e);
  }
  CostShare share(member, total);
  Scratch& scratch = *scratch_[size(member.index())];
  for (int e = 0; e < S.experts; ++e) {
    const int begin = expert_begin_[size(e)];
    const int count = expert_begin_[size(e) + 1] - begin;
    if (count == 0) continue;
    for (int unit = 0; unit < units; ++unit) {
      if (share.take(cost(e)))
        inner_unit(w.experts[size(e)], unit, std::span(item_rows_).subspan(size(begin), size(count)), begin,
                   inner_q_, scratch);
    }
  }
  member.barrier();
}

template <Shape S>
void Forward<S>::expert_down(TeamMember& member, const PackedLayer& w) {
  Scratch& scratch = *scratch_[size(member.index())];
  const auto add = [&](const Panels& down, QuantisedRows inner, int begin, int count,
                       const std::int32_t* rows, const float* shares) {
    product(member.share(down.count), down, inner, std::span(identity_).subspan(size(begin), size(count)),
            scratch, [&](int panel, int first, int now, const float* tile) {
              kernels_.scatter_add(tile, rows + first, shares + first, now, x_ + panel * panel_rows,
                                   S.hidden);
            });
  };
  for (int e = 0; e < S.experts; ++e) {
    const int begin = expert_begin_[size(e)];
    const int count = expert_begin_[size(e) + 1] - begin;
    if (count > 0)
      add(w.experts[size(e)].down, inner_q_, begin, count, item_rows_.data() + begin,
          item_shares_.data() + begin);
  }
  add(w.shared.down, shared_q_, 0, static_cast<int>(rows_.size()), identity_.data(), shared_shares_.data());
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
