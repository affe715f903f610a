#include "reference/backend.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <deque>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "model/sampler.h"
#include "model/snapshot_stream.h"
#include "reference/forward.h"

namespace calla::reference {
namespace {

constexpr int chunk =
    32;  // tokens: enough to read a weight once for many, few enough to turn to other slots soon

template <Shape S>
class ReferenceSnapshot final : public Snapshot {
 public:
  ReferenceSnapshot(SequenceState<S> state, std::vector<float> logits)
      : state_(std::move(state)), logits_(std::move(logits)) {}
  /// Reads what save() has written, with a state of as many layers.
  ReferenceSnapshot(std::istream& in, const ReferenceSnapshot* base, int layers, int context)
      : state_(base == nullptr ? SequenceState<S>(layers) : base->state_), logits_(S.vocabulary) {
    const SavedSpan saved = read_span(in, state_.position, context);
    state_.position = saved.position;
    for (KvCache& layer : state_.attention) {
      layer.keys.resize(kv_floats(saved.position));
      layer.values.resize(kv_floats(saved.position));
      read_values(in, std::span(layer.keys).subspan(kv_floats(saved.from)));
      read_values(in, std::span(layer.values).subspan(kv_floats(saved.from)));
    }
    for (DeltaState& layer : state_.delta) {
      read_values(in, std::span(layer.recurrent));
      read_values(in, std::span(layer.window));
    }
    read_values(in, std::span(logits_));
  }

  int position() const override { return state_.position; }
  std::vector<MemoryPiece> memory() const override {
    std::size_t floats = logits_.size();
    for (const KvCache& layer : state_.attention) floats += layer.keys.size() + layer.values.size();
    for (const DeltaState& layer : state_.delta) floats += layer.recurrent.size() + layer.window.size();
    return {{this, floats * sizeof(float)}};
  }
  // The state of the MTP layer stays behind: this backend does not run it.
  void save(std::ostream& out, int from) const override {
    write_span(out, {from, state_.position});
    for (const KvCache& layer : state_.attention) {
      write_values(out, std::span(layer.keys).subspan(kv_floats(from)));
      write_values(out, std::span(layer.values).subspan(kv_floats(from)));
    }
    for (const DeltaState& layer : state_.delta) {
      write_values(out, std::span(layer.recurrent));
      write_values(out, std::span(layer.window));
    }
    std::vector<float> logits = logits_;
    logits.resize(S.vocabulary);
    write_values(out, std::span<const float>(logits));
  }
  const SequenceState<S>& state() const { return state_; }
  const std::vector<float>& logits() const { return logits_; }

 private:
  /// Of the keys, or values, of one layer.
  static std::size_t kv_floats(int positions) {
    return static_cast<std::size_t>(positions) * static_cast<std::size_t>(S.kv_dim());
  }

  SequenceState<S> state_;
  std::vector<float> logits_;
};

template <Shape S>
class ReferenceBackend final : public Backend {
 public:
  ReferenceBackend(Weights weights, const MemoryPlan& memory)
      : weights_(std::move(weights)), memory_(memory) {
    slots_.assign(static_cast<std::size_t>(memory.slots), Slot(layers()));
  }

  std::string_view device() const override { return device_name; }
  const MemoryPlan& memory() const override { return memory_; }
  int prefill_chunk() const override { return chunk; }
  // Token by token, one row at a time: any cut will do. A few tokens at once are worth the trip.
  int prefill_grain() const override { return 8; }

  void reset(int slot) override { at(slot) = Slot(layers()); }

  int position(int slot) const override {
    const Slot& s = slots_[static_cast<std::size_t>(slot)];
    return s.state.position + (s.drawn ? 1 : 0);
  }

  void set_sampling(int slot, const SamplingParams& params, std::span<const Token> prompt) override {
    at(slot).sampler = Sampler(params, prompt);
    at(slot).ended = false;
  }

  void prefill(int slot, std::span<const Token> tokens, bool last) override {
    Slot& s = at(slot);
    append_drawn(s);
    for (std::size_t done = 0; done < tokens.size(); done += chunk) {
      const auto piece = tokens.subspan(done, std::min<std::size_t>(chunk, tokens.size() - done));
      const std::vector<float> hidden = forward<S>(weights_, s.state, piece);
      if (last && done + piece.size() == tokens.size())
        s.logits = logits<S>(weights_, std::span(hidden).last(S.hidden));
    }
    s.ended = false;
  }

  // The work is done when the step is collected, so that its tokens come out before the next step begins.
  void submit(std::span<const int> slots) override { submitted_.emplace_back(slots.begin(), slots.end()); }

  std::vector<SampledToken> collect() override {
    assert(!submitted_.empty());
    const std::vector<int> step = std::move(submitted_.front());
    submitted_.pop_front();
    std::vector<SampledToken> tokens;
    for (const int slot : step) {
      Slot& s = at(slot);
      if (s.ended) continue;
      append_drawn(s);
      if (!std::isfinite(s.logits[0])) {  // a fault anywhere reaches every logit
        s.ended = true;
        tokens.push_back({.slot = slot, .fault = not_a_number().what()});
        continue;
      }
      SampledToken token = s.sampler.draw(s.logits);
      token.slot = slot;
      s.ended = token.end;
      if (!token.end) s.drawn = token.token;
      tokens.push_back(std::move(token));
    }
    return tokens;
  }

  void abandon() noexcept override { submitted_.clear(); }

  void score(int slot, std::span<const Token> tokens, const LogitsVisitor& visit) override {
    Slot& s = at(slot);
    append_drawn(s);
    for (std::size_t done = 0; done < tokens.size(); done += chunk) {
      const auto piece = tokens.subspan(done, std::min<std::size_t>(chunk, tokens.size() - done));
      const std::vector<float> rows = logits<S>(weights_, forward<S>(weights_, s.state, piece));
      for (std::size_t t = 0; t < piece.size(); ++t) {
        visit(done + t, std::span(rows).subspan(t * S.vocabulary, S.vocabulary));
      }
      s.logits.assign(rows.end() - S.vocabulary, rows.end());
    }
  }

  std::unique_ptr<Snapshot> snapshot(int slot) override {
    append_drawn(at(slot));
    return std::make_unique<ReferenceSnapshot<S>>(at(slot).state, at(slot).logits);
  }

  void restore(int slot, const Snapshot& snapshot) override {
    const auto& saved = dynamic_cast<const ReferenceSnapshot<S>&>(snapshot);
    Slot& s = at(slot);
    s.state = saved.state();
    s.logits = saved.logits();
    s.drawn.reset();
    s.ended = false;
  }

  std::string snapshot_format() const override {
    return fmt::format("reference, {} layers, form 1", layers());
  }

  std::unique_ptr<Snapshot> load_snapshot(std::istream& in, const Snapshot* base) override {
    return std::make_unique<ReferenceSnapshot<S>>(in, dynamic_cast<const ReferenceSnapshot<S>*>(base),
                                                  layers(), memory_.context);
  }

 private:
  struct Slot {
    explicit Slot(int layers) : state(layers) {}

    SequenceState<S> state;
    Sampler sampler;
    std::vector<float> logits;  // after the last token of `state`
    std::optional<Token>
        drawn;  // part of the sequence, not yet of `state`: nobody has asked for the logits after it
    bool ended = false;
  };

  int layers() const { return static_cast<int>(weights_.layers.size()); }
  Slot& at(int slot) { return slots_[static_cast<std::size_t>(slot)]; }

  void append_drawn(Slot& slot) {
    if (!slot.drawn) return;
    const Token token = *std::exchange(slot.drawn, std::nullopt);
    slot.logits = logits<S>(weights_, forward<S>(weights_, slot.state, std::span(&token, 1)));
  }

  Weights weights_;
  MemoryPlan memory_;
  std::vector<Slot> slots_;
  std::deque<std::vector<int>> submitted_;
};

}  // namespace

MemoryPlan plan(const Shape& shape, std::uint64_t weight_bytes, int slots, int context) {
  constexpr std::uint64_t f32 = sizeof(float);
  const auto count = [](auto... extents) {
    return (std::uint64_t{1} * ... * static_cast<std::uint64_t>(extents));
  };
  MemoryPlan plan;
  plan.slots = slots;
  plan.context = context;
  plan.weights = weight_bytes;
  plan.kv_cache = f32 * count(slots, context, 2, shape.kv_dim(), shape.attention_layers());
  plan.states = f32 * count(slots, shape.delta_layers()) *
                (count(shape.delta_value_heads, Shape::delta_head_dim, Shape::delta_head_dim) +
                 count(Shape::convolution_taps - 1, shape.convolution_channels()));
  // The widest rows of a chunk, about six of which live at once, and the logits of one position a slot and of
  // a scored chunk.
  const int widest = std::max({2 * shape.attention_dim(), shape.convolution_channels(), shape.hidden});
  plan.workspace = f32 * (count(chunk, 6, widest) + count(slots + chunk, shape.vocabulary));
  return plan;
}

std::unique_ptr<Backend> make_backend(const Shape& shape, Weights weights, int slots, int context) {
  const MemoryPlan memory = plan(shape, weights.bytes, slots, context);
  assert(weights.layers.size() == static_cast<std::size_t>(shape.layers));
  if (same_model(shape, demo)) return std::make_unique<ReferenceBackend<demo>>(std::move(weights), memory);
  assert(same_model(shape, qwen36_35b));
  return std::make_unique<ReferenceBackend<qwen36_35b>>(std::move(weights), memory);
}

}  // namespace calla::reference
