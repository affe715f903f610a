// Mixing over time: Gated DeltaNet and gated full attention.
#include <algorithm>
#include <array>
#include <cmath>

#include "cpu/forward_stages.h"

namespace calla::cpu {
namespace {

float softplus(float x) { return std::max(x, 0.0F) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

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

#define CALLA_INSTANTIATE(shape)                                                       \
  template void Forward<shape>::delta_heads(TeamMember&, const PackedLayer&, int);     \
  template void Forward<shape>::attention_heads(TeamMember&, const PackedLayer&, int); \
  template void Forward<shape>::attend(TeamMember&, int);                              \
  template void Forward<shape>::merge_blocks(TeamMember&)
CALLA_INSTANTIATE(qwen36_35b);
CALLA_INSTANTIATE(demo);
#undef CALLA_INSTANTIATE

}  // namespace calla::cpu
