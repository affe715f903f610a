// A backend that writes what a test tells it to, so that a test knows each token of the answer.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "model/backend.h"

namespace calla::test {

/// What a reply consists of.
struct Script {
  std::vector<Token> tokens;
  bool ends = true;  // else its last token comes again and again
};

/// The reply to a prompt, by whoever tests. Called on the engine's thread.
using ScriptWriter = std::function<Script(std::span<const Token> prompt, const SamplingParams& params)>;

/// What a test tells the backend and reads from it while it runs.
struct ScriptControl {
  std::mutex mutex;  // guards the writer
  ScriptWriter writer;
  std::atomic<int> step_micros{0};     // that a decode step takes
  std::atomic<int> prefill_micros{0};  // that a piece of a prompt takes
  std::atomic<int> fail_at_step{-1};   // the step, counted from now on, that throws
  std::atomic<bool> lost{false};       // the device is, from now on
  std::atomic<int> steps{0};           // that were collected
  std::atomic<int> pieces{0};
  std::atomic<int> largest_batch{0};
};

class ScriptedBackend final : public Backend {
 public:
  ScriptedBackend(std::shared_ptr<ScriptControl> control, int slots, int context)
      : control_(std::move(control)), slots_(static_cast<std::size_t>(slots)) {
    memory_.slots = slots;
    memory_.context = context;
  }

  std::string_view device() const override { return "script"; }
  const MemoryPlan& memory() const override { return memory_; }
  int prefill_chunk() const override { return 64; }
  int prefill_grain() const override { return 16; }
  void reset(int slot) override { at(slot) = Slot(); }
  int position(int slot) const override { return slots_.at(static_cast<std::size_t>(slot)).position; }
  void set_sampling(int slot, const SamplingParams& params, std::span<const Token> prompt) override {
    const std::lock_guard lock(control_->mutex);
    Slot& s = at(slot);
    s.params = params;
    s.script = control_->writer(prompt, params);
    s.next = 0;
  }
  void prefill(int slot, std::span<const Token> tokens, bool /*last*/) override {
    pause(control_->prefill_micros);
    ++control_->pieces;
    at(slot).position += static_cast<int>(tokens.size());
    at(slot).ended = false;
  }
  void submit(std::span<const int> slots) override {
    steps_.emplace_back(slots.begin(), slots.end());
    control_->largest_batch = std::max<int>(control_->largest_batch, static_cast<int>(slots.size()));
  }
  std::vector<SampledToken> collect() override {
    pause(control_->step_micros);
    ++control_->steps;
    if (control_->lost) throw DeviceLost("the GPU", "is lost");
    if (control_->fail_at_step >= 0 && control_->fail_at_step-- == 0)
      throw std::runtime_error("the device is lost");
    std::vector<SampledToken> tokens;
    for (const int slot : steps_.front()) {
      if (!at(slot).ended) tokens.push_back(draw(slot));
    }
    steps_.pop_front();
    return tokens;
  }
  void abandon() noexcept override { steps_.clear(); }
  void score(int /*slot*/, std::span<const Token> /*tokens*/, const LogitsVisitor& /*visit*/) override {}
  // There is no cache in front of it.
  std::unique_ptr<Snapshot> snapshot(int /*slot*/) override { return nullptr; }
  void restore(int /*slot*/, const Snapshot& /*snapshot*/) override {}
  std::string snapshot_format() const override { return "script"; }
  std::unique_ptr<Snapshot> load_snapshot(std::istream& /*in*/, const Snapshot* /*base*/) override {
    return nullptr;
  }

 private:
  struct Slot {
    SamplingParams params;
    Script script;
    std::size_t next = 0;
    int position = 0;
    bool ended = false;
  };
  Slot& at(int slot) { return slots_.at(static_cast<std::size_t>(slot)); }
  static void pause(int micros) {
    if (micros > 0) std::this_thread::sleep_for(std::chrono::microseconds(micros));
  }

  SampledToken draw(int slot) {
    Slot& s = at(slot);
    SampledToken token;
    token.slot = slot;
    if (s.next < s.script.tokens.size()) {
      token.token = s.script.tokens[s.next++];
    } else if (!s.script.ends) {
      token.token = s.script.tokens.back();
    } else {
      token.token = s.params.end_tokens.front();
    }
    token.end = std::find(s.params.end_tokens.begin(), s.params.end_tokens.end(), token.token) !=
                s.params.end_tokens.end();
    s.ended = token.end;
    if (!token.end) ++s.position;
    if (s.params.top_logprobs >= 0) token.logprob = -0.5F;
    for (int i = 0; i < s.params.top_logprobs; ++i) {
      token.top_logprobs.push_back({token.token + i, -0.5F - static_cast<float>(i)});
    }
    return token;
  }

  std::shared_ptr<ScriptControl> control_;
  std::vector<Slot> slots_;
  std::deque<std::vector<int>> steps_;
  MemoryPlan memory_;
};

}  // namespace calla::test
