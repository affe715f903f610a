// A backend without a model: every slot counts upward from its last token, so that a test knows each token
// that must come.
#pragma once
#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <stdexcept>
#include <vector>

#include "model/backend.h"

namespace calla::test {

/// The next token after t is t + 1; end tokens work as in a real backend. Counters tell a test what was done.
class FakeBackend final : public Backend {
 public:
  struct Record {
    std::atomic<int> prefill_calls{0};
    std::atomic<int> most_chunks_in_a_row{0};  // without a decode step between
    std::atomic<int> steps{0};
    std::atomic<int> largest_batch{0};
    std::atomic<int> deepest{0};        // steps submitted and not collected, at most
    std::atomic<int> fail_at_step{-1};  // throws when this step is collected
    std::atomic<int> abandoned{0};
  };

  FakeBackend(int slots, int context, std::shared_ptr<Record> record, int chunk = 4)
      : slots_(static_cast<std::size_t>(slots)), record_(std::move(record)), chunk_(chunk) {
    memory_.slots = slots;
    memory_.context = context;
  }

  std::string_view device() const override { return "fake"; }
  const MemoryPlan& memory() const override { return memory_; }
  int prefill_chunk() const override { return chunk_; }
  void reset(int slot) override { at(slot) = Slot(); }
  int position(int slot) const override { return slots_[static_cast<std::size_t>(slot)].position; }
  void set_sampling(int slot, const SamplingParams& params, std::span<const Token> /*prompt*/) override {
    at(slot).params = params;
  }
  void prefill(int slot, std::span<const Token> tokens, bool last) override {
    ++record_->prefill_calls;
    record_->most_chunks_in_a_row = std::max<int>(record_->most_chunks_in_a_row, ++chunks_in_a_row_);
    check(tokens.size() <= static_cast<std::size_t>(chunk_), "a chunk is larger than asked for");
    at(slot).position += static_cast<int>(tokens.size());
    check(at(slot).position <= memory_.context, "the context overflows");
    at(slot).last = tokens.back();
    at(slot).ready = last;
    at(slot).ended = false;
  }
  void submit(std::span<const int> slots) override {
    steps_.emplace_back(slots.begin(), slots.end());
    record_->deepest = std::max<int>(record_->deepest, static_cast<int>(steps_.size()));
    record_->largest_batch = std::max<int>(record_->largest_batch, static_cast<int>(slots.size()));
  }
  std::vector<SampledToken> collect() override {
    check(!steps_.empty(), "nothing was submitted");
    chunks_in_a_row_ = 0;
    if (record_->steps++ == record_->fail_at_step) throw std::runtime_error("the device is lost");
    std::vector<SampledToken> tokens;
    for (const int slot : steps_.front()) {
      Slot& s = at(slot);
      check(s.ready, "a slot without logits was submitted");
      if (s.ended) continue;
      SampledToken token;
      token.slot = slot;
      token.token = ++s.last;
      token.end = std::find(s.params.end_tokens.begin(), s.params.end_tokens.end(), token.token) !=
                  s.params.end_tokens.end();
      s.ended = token.end;
      if (!token.end) check(++s.position <= memory_.context, "the context overflows");
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
  std::unique_ptr<Snapshot> snapshot(int /*slot*/) override { return nullptr; }
  void restore(int /*slot*/, const Snapshot& /*snapshot*/) override {}

 private:
  struct Slot {
    SamplingParams params;
    Token last = 0;
    int position = 0;
    bool ready = false;
    bool ended = false;
  };
  static void check(bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
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
