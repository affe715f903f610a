// A backend without a model: every slot counts upward from its last token, so that a test knows each token
// that must come.
#pragma once
#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "model/backend.h"
#include "model/snapshot_stream.h"

namespace calla::test {

/// The next token after t is t + 1; end tokens work as in a real backend. Counters tell a test what was done.
/// A slot remembers its whole sequence, and the last piece of a prompt throws where that is not the prompt.
class FakeBackend final : public Backend {
 public:
  struct Record {
    std::atomic<int> prefill_calls{0};
    std::atomic<int> prefilled{0};             // tokens
    std::atomic<int> most_chunks_in_a_row{0};  // without a decode step between
    std::atomic<int> largest_piece_beside_an_answer{0};
    std::atomic<int> steps{0};
    std::atomic<int> largest_batch{0};
    std::atomic<int> deepest{0};        // steps submitted and not collected, at most
    std::atomic<int> fail_at_step{-1};  // throws when this step is collected
    std::atomic<int> abandoned{0};
    std::atomic<int> snapshots{0};
    // On the engine's thread, before anything is done; what they throw, the call throws.
    std::function<void(int slot)> at_prefill = {};
    std::function<void(int slot)> at_submit = {};  // for each slot of a step
    std::function<void()> at_collect = {};
    std::function<std::string(int slot)> fault_of = {};  // of a step that is collected; empty: none
    std::function<void()> at_load = {};
  };

  static constexpr int grain = 2;
  static constexpr std::size_t state_bytes = 1000;
  static constexpr std::size_t block_bytes = 100;  // of 8 tokens, shared by snapshots
  static constexpr std::size_t block_tokens = 8;

  FakeBackend(int slots, int context, std::shared_ptr<Record> record, int chunk = 4)
      : slots_(static_cast<std::size_t>(slots)), record_(std::move(record)), chunk_(chunk) {
    memory_.slots = slots;
    memory_.context = context;
  }

  std::string_view device() const override { return "fake"; }
  const MemoryPlan& memory() const override { return memory_; }
  int prefill_chunk() const override { return chunk_; }
  int prefill_grain() const override { return grain; }
  void reset(int slot) override { at(slot) = Slot(); }
  int position(int slot) const override {
    return static_cast<int>(slots_[static_cast<std::size_t>(slot)].state.tokens.size());
  }
  void set_sampling(int slot, const SamplingParams& params, std::span<const Token> prompt) override {
    at(slot).params = params;
    at(slot).prompt.emplace(prompt.begin(), prompt.end());
  }
  void prefill(int slot, std::span<const Token> tokens, bool last) override {
    if (record_->at_prefill) record_->at_prefill(slot);
    ++record_->prefill_calls;
    record_->prefilled += static_cast<int>(tokens.size());
    record_->most_chunks_in_a_row = std::max<int>(record_->most_chunks_in_a_row, ++chunks_in_a_row_);
    if (!steps_.empty()) {
      record_->largest_piece_beside_an_answer =
          std::max<int>(record_->largest_piece_beside_an_answer, static_cast<int>(tokens.size()));
    }
    check(tokens.size() <= static_cast<std::size_t>(chunk_), "a chunk is larger than asked for");
    Slot& s = at(slot);
    for (const Token token : tokens) append(s, token);
    if (s.prompt) {
      check(last || position(slot) % grain == 0, "a cut within a grain");
      check(!last || tokens.size() >= grain || s.state.tokens.size() < 2 * grain,
            "the last piece is too short");
    }
    if (last && s.prompt) {
      check(s.state.tokens == *s.prompt, "the sequence is not the prompt");
      s.prompt.reset();
    }
    s.ready = last;
    s.ended = false;
  }
  void submit(std::span<const int> slots) override {
    if (record_->at_submit) std::for_each(slots.begin(), slots.end(), record_->at_submit);
    steps_.emplace_back(slots.begin(), slots.end());
    record_->deepest = std::max<int>(record_->deepest, static_cast<int>(steps_.size()));
    record_->largest_batch = std::max<int>(record_->largest_batch, static_cast<int>(slots.size()));
  }
  std::vector<SampledToken> collect() override {
    check(!steps_.empty(), "nothing was submitted");
    if (record_->at_collect) record_->at_collect();
    chunks_in_a_row_ = 0;
    if (record_->steps++ == record_->fail_at_step) throw std::runtime_error("the device is lost");
    std::vector<SampledToken> tokens;
    for (const int slot : steps_.front()) {
      Slot& s = at(slot);
      check(s.ready, "a slot without logits was submitted");
      if (s.ended) continue;
      SampledToken token;
      token.slot = slot;
      if (record_->fault_of) token.fault = record_->fault_of(slot);
      if (!token.fault.empty()) {
        s.ended = true;
        tokens.push_back(token);
        continue;
      }
      token.token = s.state.tokens.back() + 1;
      token.end = std::find(s.params.end_tokens.begin(), s.params.end_tokens.end(), token.token) !=
                  s.params.end_tokens.end();
      s.ended = token.end;
      if (!token.end) append(s, token.token);
      tokens.push_back(token);
    }
    steps_.pop_front();
    return tokens;
  }
  void abandon() noexcept override {
    ++record_->abandoned;
    steps_.clear();
  }
  void score(int /*slot*/, std::span<const Token> /*tokens*/, const LogitsVisitor& /*visit*/) override {}
  std::unique_ptr<Snapshot> snapshot(int slot) override {
    ++record_->snapshots;
    return std::make_unique<FakeSnapshot>(at(slot).state);
  }
  void restore(int slot, const Snapshot& snapshot) override {
    at(slot).state = dynamic_cast<const FakeSnapshot&>(snapshot).state;
  }
  std::string snapshot_format() const override { return "fake"; }
  std::unique_ptr<Snapshot> load_snapshot(std::istream& in, const Snapshot* base) override {
    if (record_->at_load) record_->at_load();
    State state = base == nullptr ? State() : dynamic_cast<const FakeSnapshot&>(*base).state;
    const SavedSpan saved = read_span(in, static_cast<int>(state.tokens.size()), memory_.context);
    state.tokens.resize(static_cast<std::size_t>(saved.position));
    read_values(in, std::span(state.tokens).subspan(static_cast<std::size_t>(saved.from)));
    grow_blocks(state);
    return std::make_unique<FakeSnapshot>(std::move(state));
  }

 private:
  struct State {
    std::vector<Token> tokens;
    std::vector<std::shared_ptr<int>> blocks;  // identities only
  };
  struct Slot {
    State state;
    SamplingParams params;
    std::optional<std::vector<Token>> prompt;  // until it has been read
    bool ready = false;
    bool ended = false;
  };

  class FakeSnapshot final : public Snapshot {
   public:
    explicit FakeSnapshot(State s) : state(std::move(s)) {}
    int position() const override { return static_cast<int>(state.tokens.size()); }
    std::vector<MemoryPiece> memory() const override {
      std::vector<MemoryPiece> pieces{{this, state_bytes}};
      for (const auto& block : state.blocks) pieces.push_back({block.get(), block_bytes});
      return pieces;
    }
    void save(std::ostream& out, int from) const override {
      write_span(out, {from, position()});
      write_values(out, std::span<const Token>(state.tokens).subspan(static_cast<std::size_t>(from)));
    }

    const State state;
  };

  static void check(bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  }
  static void grow_blocks(State& state) {
    while (state.blocks.size() < state.tokens.size() / block_tokens)
      state.blocks.push_back(std::make_shared<int>());
  }
  void append(Slot& slot, Token token) const {
    slot.state.tokens.push_back(token);
    check(slot.state.tokens.size() <= static_cast<std::size_t>(memory_.context), "the context overflows");
    grow_blocks(slot.state);
  }
  Slot& at(int slot) { return slots_.at(static_cast<std::size_t>(slot)); }

  std::vector<Slot> slots_;
  std::deque<std::vector<int>> steps_;
  std::shared_ptr<Record> record_;
  MemoryPlan memory_;
  int chunk_;
  int chunks_in_a_row_ = 0;
};

}  // namespace calla::test
