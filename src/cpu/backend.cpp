#include "cpu/backend.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "cpu/forward.h"
#include "model/sampler.h"
#include "model/snapshot_stream.h"

namespace calla::cpu {
namespace {

// Tokens a prefill pass takes: enough that an expert meets 16 of them on average, few enough that their
// activations stay in the cache.
constexpr int chunk = 512;
constexpr int few_rows = 8;  // a prompt this short is bound by reading the weights
// A row's result depends on its pass in three ways only: whether the pass has few rows, which of a pair of
// tokens it is in the recurrent scan, and which rows share its tile of 8 in attention. Pieces of 16 leave all
// three alone.
constexpr int grain = 16;
static_assert(grain > few_rows && grain % 8 == 0 && chunk % grain == 0);
constexpr int scored_rows = 32;  // logits held at once while scoring

class CpuSnapshot final : public Snapshot {
 public:
  CpuSnapshot(const Sequence& sequence, std::span<const float> logits)
      : position_(sequence.position),
        kv_(sequence.kv.share(sequence.position)),
        states_(sequence.states.size()),
        windows_(sequence.windows.size()),
        logits_(logits.begin(), logits.end()) {
    std::memcpy(states_.data(), sequence.states.data(), states_.size());
    std::memcpy(windows_.data(), sequence.windows.data(), windows_.size());
  }

  /// Reads what save() has written for a sequence like `like`.
  CpuSnapshot(std::istream& in, const CpuSnapshot* base, const Sequence& like, int context, int vocabulary)
      : kv_(like.kv.share(0)),
        states_(like.states.size()),
        windows_(like.windows.size()),
        logits_(static_cast<std::size_t>(vocabulary)) {
    const SavedSpan saved = read_span(in, base == nullptr ? 0 : base->position_, context);
    position_ = saved.position;
    if (base != nullptr) kv_ = base->kv_.share(whole_blocks(saved.from) * kv_block_positions);
    kv_.load(in, kv_blocks(position_));
    read_values(in, std::span(states_.data(), states_.size()));
    read_values(in, std::span(windows_.data(), windows_.size()));
    read_values(in, std::span(logits_));
  }

  int position() const override { return position_; }
  std::vector<MemoryPiece> memory() const override {
    std::vector<MemoryPiece> pieces{
        {this, states_.size() + windows_.size() + logits_.size() * sizeof(float)}};
    kv_.add_memory(pieces);
    return pieces;
  }
  void save(std::ostream& out, int from) const override {
    write_span(out, {from, position_});
    kv_.save(out, whole_blocks(from));
    write_values(out, std::span<const std::byte>(states_.data(), states_.size()));
    write_values(out, std::span<const std::byte>(windows_.data(), windows_.size()));
    write_values(out, std::span<const float>(logits_));
  }

  void restore(Sequence& sequence, std::span<float> logits) const {
    sequence.position = position_;
    sequence.kv = kv_.share(position_);
    std::memcpy(sequence.states.data(), states_.data(), states_.size());
    std::memcpy(sequence.windows.data(), windows_.data(), windows_.size());
    std::copy(logits_.begin(), logits_.end(), logits.begin());
  }

 private:
  /// Blocks that a sequence of some positions never changes again.
  static int whole_blocks(int positions) { return positions / kv_block_positions; }

  int position_ = 0;
  KvCache kv_;
  Region states_;
  Region windows_;
  std::vector<float> logits_;
};

template <Shape S>
class CpuBackend final : public Backend {
 public:
  CpuBackend(const Shape& shape, Weights weights, const MemoryPlan& memory, int threads,
             const PackProgress& progress)
      : shape_(shape),
        memory_(memory),
        team_(threads),
        device_(device_name(threads)),
        weights_(pack(std::move(weights), shape, team_, progress)),
        forward_(weights_, best_kernels(), team_, std::max(chunk, memory.slots), memory.slots,
                 memory.context),
        logits_(static_cast<std::size_t>(memory.slots + scored_rows) * S.vocabulary * sizeof(float)) {
    slots_.reserve(static_cast<std::size_t>(memory.slots));
    for (int slot = 0; slot < memory.slots; ++slot) slots_.emplace_back(shape, logits_row(slot));
  }

  std::string_view device() const override { return device_; }
  const MemoryPlan& memory() const override { return memory_; }
  int prefill_chunk() const override { return chunk; }
  int prefill_grain() const override { return grain; }

  void reset(int slot) override {
    Slot& s = at(slot);
    std::memset(s.sequence.states.data(), 0, s.sequence.states.size());
    std::memset(s.sequence.windows.data(), 0, s.sequence.windows.size());
    s.sequence.position = 0;
    s.sequence.kv.truncate(0);
    s.sampler = Sampler();
    s.drawn.reset();
    s.ended = false;
  }

  int position(int slot) const override {
    const Slot& s = slots_[static_cast<std::size_t>(slot)];
    return s.sequence.position + (s.drawn ? 1 : 0);
  }

  void set_sampling(int slot, const SamplingParams& params, std::span<const Token> prompt) override {
    at(slot).sampler = Sampler(params, prompt);
    at(slot).ended = false;
  }

  void prefill(int slot, std::span<const Token> tokens, bool last) override {
    append_drawn(std::span(&slot, 1));
    Slot& s = at(slot);
    for (std::size_t done = 0; done < tokens.size();) {
      const std::size_t rest = tokens.size() - done;
      // The last pass has at least a grain, so that many tokens at once are as many in pieces.
      const bool leaves_too_few = rest > chunk && rest < chunk + grain;
      const auto piece =
          tokens.subspan(done, leaves_too_few ? chunk - grain : std::min<std::size_t>(chunk, rest));
      // A long prompt is bound by arithmetic, and coarser activations make it a third faster; a short one by
      // reading the weights, where they would gain nothing.
      append(s, piece, tokens.size() > few_rows ? Precision::one_plane : Precision::two_planes);
      done += piece.size();
      if (last && done == tokens.size()) {
        const int row = static_cast<int>(piece.size()) - 1;
        logits(std::span(&row, 1), std::span(&s.logits, 1));
      }
    }
    s.ended = false;
  }

  // The work is done when the step is collected, so that its tokens come out before the next step begins.
  void submit(std::span<const int> slots) override { submitted_.emplace_back(slots.begin(), slots.end()); }

  std::vector<SampledToken> collect() override {
    assert(!submitted_.empty());
    const std::vector<int> step = std::move(submitted_.front());
    submitted_.pop_front();
    std::vector<int> running;
    std::copy_if(step.begin(), step.end(), std::back_inserter(running),
                 [&](int slot) { return !at(slot).ended; });
    append_drawn(running);
    std::vector<SampledToken> tokens;
    for (const int slot : running) {
      Slot& s = at(slot);
      if (!are_numbers(s.logits)) {
        s.ended = true;
        tokens.push_back({.slot = slot, .fault = not_a_number().what()});
        continue;
      }
      SampledToken token = s.sampler.draw(std::span(s.logits, std::size_t{S.vocabulary}));
      token.slot = slot;
      s.ended = token.end;
      if (!token.end) s.drawn = token.token;
      tokens.push_back(std::move(token));
    }
    return tokens;
  }

  void abandon() noexcept override { submitted_.clear(); }

  void score(int slot, std::span<const Token> tokens, const LogitsVisitor& visit) override {
    append_drawn(std::span(&slot, 1));
    Slot& s = at(slot);
    for (std::size_t done = 0; done < tokens.size(); done += chunk) {
      const auto piece = tokens.subspan(done, std::min<std::size_t>(chunk, tokens.size() - done));
      append(s, piece, Precision::two_planes);
      const int count = static_cast<int>(piece.size());
      for (int first = 0; first < count; first += scored_rows) {
        std::vector<int> rows;
        std::vector<float*> out;
        for (int row = first; row < std::min(first + scored_rows, count); ++row) {
          rows.push_back(row);
          out.push_back(logits_row(memory_.slots + row - first));
        }
        logits(rows, out);
        for (std::size_t i = 0; i < rows.size(); ++i)
          visit(done + static_cast<std::size_t>(first) + i, std::span(out[i], std::size_t{S.vocabulary}));
        if (first + scored_rows >= count) std::copy_n(out.back(), S.vocabulary, s.logits);
      }
    }
  }

  std::unique_ptr<Snapshot> snapshot(int slot) override {
    append_drawn(std::span(&slot, 1));
    return std::make_unique<CpuSnapshot>(at(slot).sequence,
                                         std::span(at(slot).logits, std::size_t{S.vocabulary}));
  }

  void restore(int slot, const Snapshot& snapshot) override {
    Slot& s = at(slot);
    dynamic_cast<const CpuSnapshot&>(snapshot).restore(s.sequence,
                                                       std::span(s.logits, std::size_t{S.vocabulary}));
    s.drawn.reset();
    s.ended = false;
  }

  std::string snapshot_format() const override {
    return fmt::format("CPU {}, {} layers, form 1", best_kernels().name, shape_.layers);
  }

  std::unique_ptr<Snapshot> load_snapshot(std::istream& in, const Snapshot* base) override {
    return std::make_unique<CpuSnapshot>(in, dynamic_cast<const CpuSnapshot*>(base), slots_.front().sequence,
                                         memory_.context, S.vocabulary);
  }

 private:
  struct Slot {
    Slot(const Shape& shape, float* row) : sequence(shape), logits(row) {}

    Sequence sequence;
    Sampler sampler;
    float* logits;  // [vocabulary], after the last token of `sequence`
    std::optional<Token>
        drawn;  // part of the sequence, not yet of `sequence`: nobody has asked for the logits after it
    bool ended = false;
  };

  Slot& at(int slot) { return slots_[static_cast<std::size_t>(slot)]; }
  float* logits_row(int row) const {
    return logits_.as<float>() + static_cast<std::size_t>(row) * S.vocabulary;
  }

  void append(Slot& slot, std::span<const Token> tokens, Precision precision) {
    const Segment segment{&slot.sequence, tokens};
    forward_.run(std::span(&segment, 1), precision);
  }

  /// One pass for all slots that have a drawn token: the weights are read once.
  void append_drawn(std::span<const int> slots) {
    std::vector<Token> tokens;
    tokens.reserve(slots.size());
    std::vector<Segment> segments;
    std::vector<int> rows;
    std::vector<float*> out;
    for (const int slot : slots) {
      Slot& s = at(slot);
      if (!s.drawn) continue;
      tokens.push_back(*s.drawn);
      segments.push_back({&s.sequence, std::span(&tokens.back(), 1)});
      rows.push_back(static_cast<int>(rows.size()));
      out.push_back(s.logits);
    }
    if (segments.empty()) return;
    forward_.run(segments, Precision::two_planes);
    for (const int slot : slots) at(slot).drawn.reset();
    forward_.logits(rows, out);
  }

  /// A fault anywhere in the pass reaches every logit.
  static bool are_numbers(const float* logits) { return std::isfinite(logits[0]); }

  void logits(std::span<const int> rows, std::span<float* const> out) {
    forward_.logits(rows, out);
    if (!std::all_of(out.begin(), out.end(), are_numbers)) throw not_a_number();
  }

  Shape shape_;
  MemoryPlan memory_;
  ThreadTeam team_;
  std::string device_;
  PackedWeights weights_;
  Forward<S> forward_;
  Region logits_;  // [slots + scored_rows][vocabulary]
  std::vector<Slot> slots_;
  std::deque<std::vector<int>> submitted_;
};

}  // namespace

std::string device_name(int threads) {
  return fmt::format("CPU ({}, {} thread{})", best_kernels().name, threads, threads == 1 ? "" : "s");
}

MemoryPlan plan(const Shape& shape, int slots, int context) {
  const auto count = [](auto... extents) {
    return (std::uint64_t{1} * ... * static_cast<std::uint64_t>(extents));
  };
  MemoryPlan plan;
  plan.slots = slots;
  plan.context = context;
  plan.weights = weight_bytes(shape);
  plan.kv_cache = count(slots, kv_blocks(context), kv_block_bytes(shape.attention_layers() * shape.kv_heads));
  plan.states = sizeof(float) * count(slots, shape.delta_layers()) *
                (count(shape.delta_value_heads, Shape::delta_head_dim, Shape::delta_head_dim) +
                 count(Shape::convolution_taps - 1, shape.convolution_channels()));
  plan.workspace = workspace_bytes(shape, std::max(chunk, slots), slots, context) +
                   sizeof(float) * count(slots + scored_rows, shape.vocabulary);
  return plan;
}

std::unique_ptr<Backend> make_backend(const Shape& shape, Weights weights, int slots, int context,
                                      int threads, const PackProgress& progress) {
  const MemoryPlan memory = plan(shape, slots, context);
  if (same_model(shape, demo))
    return std::make_unique<CpuBackend<demo>>(shape, std::move(weights), memory, threads, progress);
  assert(same_model(shape, qwen36_35b));
  return std::make_unique<CpuBackend<qwen36_35b>>(shape, std::move(weights), memory, threads, progress);
}

}  // namespace calla::cpu
