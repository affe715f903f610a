#include "metal/backend.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "metal/decoder.h"
#include "metal/encode.h"
#include "metal/prefill.h"
#include "metal/sample_slots.h"
#include "metal/self_test.h"
#include "metal/sequences.h"
#include "metal/turns.h"

namespace calla::metal {
namespace {

static_assert(largest_chunk == prefill_chunk_tokens);

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

class MetalBackend final : public Backend {
 public:
  MetalBackend(std::unique_ptr<Device> device, const Shape& shape, const Weights& weights,
               const MemoryPlan& memory, const LoadProgress& progress, int chunk)
      : shape_(shape),
        chunk_(chunk),
        memory_(memory),
        device_(std::move(device)),
        tensor_units_(examine_tensor_units(*device_, shape)),
        name_(describe(*device_, tensor_units_)),
        weights_(place_weights(*device_, weights, progress)),
        turns_(make_turns(*device_, memory.context)),
        sequences_(*device_, shape, memory.slots, memory.context),
        sampling_(*device_, memory.slots, shape.vocabulary),
        decoder_(*device_, shape, weights_, sequences_, turns_, memory.context),
        prefill_(*device_, shape, weights_, sequences_, turns_, tensor_units_.used),
        slots_(size(memory.slots)) {}

  ~MetalBackend() override {
    try {
      drain();
    } catch (const Error&) {
      // The GPU has failed: nothing runs any more.
    }
  }
  MetalBackend(const MetalBackend&) = delete;
  MetalBackend& operator=(const MetalBackend&) = delete;
  MetalBackend(MetalBackend&&) = delete;
  MetalBackend& operator=(MetalBackend&&) = delete;

  std::string_view device() const override { return name_; }
  const MemoryPlan& memory() const override { return memory_; }
  int prefill_chunk() const override { return chunk_; }
  int prefill_grain() const override { return prefill_grain_tokens; }

  void reset(int slot) override {
    device_->expect_work();
    drain();
    sequences_.clear(slot);
    slots_[size(slot)] = {};
  }

  int position(int slot) const override {
    const Slot& s = slots_[size(slot)];
    return s.computed + (s.drawn ? 1 : 0);
  }

  void set_sampling(int slot, const SamplingParams& params, std::span<const Token> prompt) override {
    drain();
    sampling_.set(slot, params, prompt);
    sequences_.begin_drawing(slot);
    slots_[size(slot)].ended = false;
  }

  void prefill(int slot, std::span<const Token> tokens, bool last) override {
    append_drawn(slot);
    Slot& s = slots_[size(slot)];
    sequences_.reserve(slot, s.computed + static_cast<int>(tokens.size()));
    // The last pass has at least a grain, so that many tokens at once are as many in pieces.
    const std::size_t chunk = size(chunk_);
    const std::size_t grain = size(prefill_grain_tokens);
    for (std::size_t done = 0; done < tokens.size();) {
      const std::size_t rest = tokens.size() - done;
      const std::size_t count = rest > chunk && rest < chunk + grain ? chunk - grain : std::min(chunk, rest);
      // The GPU may be a whole chunk behind, but no more: the tokens are handed over in two buffers.
      wait_for(std::exchange(chunk_before_last_, last_chunk_));
      Prefill::Head head;
      if (last && done + count == tokens.size()) {
        head = [&, row = static_cast<int>(count) - 1](Pass& pass, const View& stream) {
          decoder_.encode_head(pass, slot, stream, row);
        };
      }
      prefill_.run(slot, s.computed, tokens.subspan(done, count), head,
                   [&](std::unique_ptr<Pass> pass) { commit(std::move(pass)); });
      last_chunk_ = committed_;
      s.computed += static_cast<int>(count);
      done += count;
    }
    s.ended = false;
  }

  void submit(std::span<const int> slots) override {
    std::unique_ptr<Pass> pass = device_->begin();
    Step step{++last_step_, {}, 0};
    std::vector<DecodeRow> rows;
    for (const int slot : slots) {
      Slot& s = slots_[size(slot)];
      // A step that is under way leaves a token behind, unless the slot ends with it, and then the GPU leaves
      // the slot alone.
      const bool computes = (s.drawn || s.submitted > 0) && s.computed + s.ahead < memory_.context;
      if (computes) {
        rows.push_back({slot, s.computed + s.ahead++});
        sequences_.reserve(slot, rows.back().position + 1);
      }
      ++s.submitted;
      step.rows.push_back({slot, computes});
    }
    encode_rows(*pass, rows);
    sampling_.encode(*pass, slots, step.number, sequences_.logits(), sequences_.peaks(),
                     sequences_.slot_states());
    commit(std::move(pass));
    step.pass = committed_;
    steps_.push_back(std::move(step));
  }

  std::vector<SampledToken> collect() override {
    assert(!steps_.empty());
    const Step step = std::move(steps_.front());
    steps_.pop_front();
    wait_for(step.pass);
    std::vector<SampledToken> tokens;
    for (std::size_t row = 0; row < step.rows.size(); ++row) {
      const auto [slot, computes] = step.rows[row];
      Slot& s = slots_[size(slot)];
      --s.submitted;
      if (computes) {
        --s.ahead;
        if (!s.ended) ++s.computed;
      }
      DrawnRow drawn = sampling_.read(step.number, static_cast<int>(row));
      if (drawn.fault) {
        s.drawn = false;
        s.ended = true;
        tokens.push_back({.slot = slot, .fault = not_a_number().what()});
        continue;
      }
      s.drawn = drawn.has_token && !drawn.sampled.end;
      s.ended = !s.drawn;
      if (!drawn.has_token) continue;
      drawn.sampled.slot = slot;
      tokens.push_back(std::move(drawn.sampled));
    }
    return tokens;
  }

  void abandon() noexcept override {
    steps_.clear();
    for (Slot& slot : slots_) slot = {.computed = slot.computed};
  }

  void score(int slot, std::span<const Token> tokens, const LogitsVisitor& visit) override {
    append_drawn(slot);
    Slot& s = slots_[size(slot)];
    sequences_.reserve(slot, s.computed + static_cast<int>(tokens.size()));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      drain();
      sequences_.give(slot, tokens[i]);
      append(slot);
      drain();
      visit(i, sequences_.logits_of(slot));
    }
  }

  std::unique_ptr<Snapshot> snapshot(int slot) override {
    append_drawn(slot);
    drain();
    return sequences_.snapshot(slot, slots_[size(slot)].computed);
  }

  void restore(int slot, const Snapshot& snapshot) override {
    device_->expect_work();
    drain();
    sequences_.restore(slot, dynamic_cast<const SequenceSnapshot&>(snapshot));
    slots_[size(slot)] = Slot{.computed = snapshot.position()};
  }

  std::string snapshot_format() const override {
    return fmt::format("Metal {}, {} layers, form 1", name_, shape_.layers);
  }

  std::unique_ptr<Snapshot> load_snapshot(std::istream& in, const Snapshot* base) override {
    return sequences_.load(in, dynamic_cast<const SequenceSnapshot*>(base));
  }

 private:
  struct Slot {
    int computed = 0;    // tokens whose keys, values and states are there, as far as steps are collected
    bool drawn = false;  // the last token that was collected is not among them
    bool ended = false;  // it was an end token
    int submitted = 0;   // steps under way
    int ahead = 0;       // of these, those that compute a token, unless the slot has ended
  };
  struct StepRow {
    int slot = 0;
    bool computes = false;
  };
  struct Step {
    std::uint32_t number = 0;
    std::vector<StepRow> rows;
    std::uint64_t pass = 0;
  };
  // As many as a command queue takes before committing another waits.
  static constexpr std::size_t most_passes = 48;

  void commit(std::unique_ptr<Pass> pass) {
    pass->commit();
    passes_.push_back(std::move(pass));
    ++committed_;
    if (passes_.size() > most_passes) wait_for(done_ + 1);
  }

  /// Waits for the first `number` passes that were ever committed.
  void wait_for(std::uint64_t number) {
    while (done_ < number) {
      const std::unique_ptr<Pass> pass = std::move(passes_.front());
      passes_.pop_front();
      ++done_;
      pass->wait();
    }
  }
  void drain() { wait_for(committed_); }

  void encode_rows(Pass& pass, std::span<const DecodeRow> rows) const {
    for (std::size_t done = 0; done < rows.size(); done += calla_kernels::max_rows) {
      decoder_.encode(pass,
                      rows.subspan(done, std::min<std::size_t>(calla_kernels::max_rows, rows.size() - done)));
      pass.barrier();
    }
  }

  /// Computes the token that the slot's state holds.
  void append(int slot) {
    Slot& s = slots_[size(slot)];
    std::unique_ptr<Pass> pass = device_->begin();
    const DecodeRow row{slot, s.computed};
    decoder_.encode(*pass, std::span(&row, 1));
    commit(std::move(pass));
    ++s.computed;
  }

  /// Computes a token that was drawn and that no step has come after.
  void append_drawn(int slot) {
    Slot& s = slots_[size(slot)];
    if (!s.drawn) return;
    s.drawn = false;
    sequences_.reserve(slot, s.computed + 1);
    append(slot);
  }

  Shape shape_;
  int chunk_;
  MemoryPlan memory_;
  std::unique_ptr<Device> device_;
  TensorUnits tensor_units_;
  std::string name_;
  DeviceWeights weights_;
  std::unique_ptr<Buffer> turns_;
  Sequences sequences_;
  SampleSlots sampling_;
  Decoder decoder_;
  Prefill prefill_;
  std::vector<Slot> slots_;
  std::deque<Step> steps_;
  std::uint32_t last_step_ = 0;
  std::deque<std::unique_ptr<Pass>> passes_;  // committed and not waited for
  std::uint64_t committed_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t last_chunk_ = 0;  // the last pass of a prompt's last chunk
  std::uint64_t chunk_before_last_ = 0;
};

}  // namespace

MemoryPlan plan(const Shape& shape, std::uint64_t weight_bytes, int slots, int context) {
  const auto each_slot = [&](std::size_t bytes) { return static_cast<std::uint64_t>(slots) * bytes; };
  const SequenceBytes bytes = sequence_bytes(shape);
  MemoryPlan plan;
  plan.slots = slots;
  plan.context = context;
  plan.weights = weight_bytes;
  // Without an attention layer the pages hold nothing.
  if (shape.attention_layers() > 0) plan.kv_cache = each_slot(size(page_count(context)) * bytes.page);
  plan.states = each_slot(bytes.states + bytes.windows);
  plan.workspace = Decoder::scratch_bytes(shape, context) + Prefill::scratch_bytes(shape) +
                   turns_bytes(context) + each_slot(bytes.logits + bytes.peaks) +
                   SampleSlots::device_bytes(slots, shape.vocabulary);
  return plan;
}

std::unique_ptr<Backend> make_backend(std::unique_ptr<Device> device, const Shape& shape,
                                      const Weights& weights, int slots, int context,
                                      const LoadProgress& progress, int chunk) {
  assert(chunk <= largest_chunk && chunk % (2 * prefill_grain_tokens) == 0);
  return std::make_unique<MetalBackend>(std::move(device), shape, weights,
                                        plan(shape, weights.bytes, slots, context), progress, chunk);
}

}  // namespace calla::metal
