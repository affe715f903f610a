// The mixture of experts: routing, gathering by expert, gate, up and down.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cpu/forward_stages.h"

namespace calla::cpu {
namespace {

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

#define CALLA_INSTANTIATE(shape)                                                   \
  template void Forward<shape>::route_and_shared(TeamMember&, const PackedLayer&); \
  template void Forward<shape>::choose_experts(TeamMember&);                       \
  template void Forward<shape>::expert_gate_up(TeamMember&, const PackedLayer&);   \
  template void Forward<shape>::expert_down(TeamMember&, const PackedLayer&)
CALLA_INSTANTIATE(qwen36_35b);
CALLA_INSTANTIATE(demo);
#undef CALLA_INSTANTIATE

}  // namespace calla::cpu
