#include "cuda/backend.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "cuda/decoder.h"
#include "cuda/fault_of.h"
#include "cuda/machine.h"
#include "cuda/models.h"
#include "cuda/prefill.h"
#include "cuda/sample_slots.h"
#include "cuda/sequence.h"
#include "cuda/upload.h"

namespace calla::cuda {
namespace {

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

template <class Model>
class CudaBackend final : public Backend {
 public:
  CudaBackend(const Shape& shape, const Weights& weights, const MemoryPlan& memory,
              const LoadProgress& progress)
      : shape_(shape),
        memory_(memory),
        device_(find_device().name),
        stream_(make_stream()),
        weights_(upload_weights(weights, shape, progress)),
        sequences_(shape, memory.slots, memory.context, memory.snapshots, stream_.get()),
        sampling_(memory.slots, most_rows, shape.vocabulary),
        decoder_(weights_, sequences_, sampling_.step(nullptr, nullptr, nullptr, nullptr).positions,
                 stream_.get()),
        prefill_(weights_, sequences_, memory.context, stream_.get()),
        scored_(size(shape.vocabulary)),
        slots_(size(memory.slots)) {
    constexpr std::size_t kept = std::size_t{1} << 30U;
    keep_pooled_memory(kept);
    decoder_.set_draw(
        [step = sampling_.step(sequences_.logits(), decoder_.slots(), decoder_.tokens(), decoder_.active())](
            int rows, cudaStream_t stream) { launch_sample<Model::shape>(step, rows, stream); });
  }

  ~CudaBackend() override { cudaStreamSynchronize(stream_.get()); }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;
  CudaBackend(CudaBackend&&) = delete;
  CudaBackend& operator=(CudaBackend&&) = delete;

  std::string_view device() const override { return device_; }
  const MemoryPlan& memory() const override { return memory_; }
  int prefill_chunk() const override { return prefill_.chunk(); }
  int prefill_grain() const override { return prefill_grain_tokens; }

  void reset(int slot) override {
    sequences_.clear(slot);
    place(slot, 0);
    sequences_.settle();
  }

  int position(int slot) const override { return slots_[size(slot)].position; }

  void set_sampling(int slot, const SamplingParams& params, std::span<const Token> prompt) override {
    sampling_.set(slot, params, prompt, stream_.get());
  }

  void prefill(int slot, std::span<const Token> tokens, bool last) override {
    Slot& s = slots_[size(slot)];
    sequences_.reserve(slot, s.position + static_cast<int>(tokens.size()));
    // The last pass has at least a grain, so that many tokens at once are as many in pieces. A few go the way
    // of decoding, which reads the weights of their experts alone.
    const auto chunk = size(prefill_.chunk());
    constexpr std::size_t grain = prefill_grain_tokens;
    const bool few = tokens.size() <= size(most_rows);
    for (std::size_t done = 0; done < tokens.size();) {
      const std::size_t rest = tokens.size() - done;
      const std::size_t count = rest > chunk && rest < chunk + grain ? chunk - grain : std::min(chunk, rest);
      const std::span<const Token> pass = tokens.subspan(done, count);
      const float* const newest =
          few ? decoder_.append(slot, s.position, pass) : prefill_.run(slot, s.position, pass);
      s.position += static_cast<int>(count);
      done += count;
      if (last && done == tokens.size()) decoder_.logits(slot, newest);
    }
    place(slot, s.position);
  }

  void submit(std::span<const int> slots) override {
    assert(slots.size() <= size(most_rows));
    for (const int slot : slots) reserve_for_step(slot);
    decoder_.step(slots);
    for (const int slot : slots) ++slots_[size(slot)].submitted;
    steps_.push_back({++last_step_, {slots.begin(), slots.end()}});
    sequences_.settle();
  }

  std::vector<SampledToken> collect() override {
    assert(!steps_.empty());
    const Step step = std::move(steps_.front());
    steps_.pop_front();
    for (const int slot : step.slots) --slots_[size(slot)].submitted;
    std::vector<SampledToken> tokens;
    for (std::size_t row = 0; row < step.slots.size(); ++row) {
      DrawnRow drawn = wait_for(step.number, static_cast<int>(row));
      if (drawn.fault) {
        tokens.push_back({.slot = step.slots[row], .fault = not_a_number().what()});
        continue;
      }
      if (!drawn.has_token) continue;
      drawn.sampled.slot = step.slots[row];
      if (!drawn.sampled.end) ++slots_[size(drawn.sampled.slot)].position;
      tokens.push_back(std::move(drawn.sampled));
    }
    return tokens;
  }

  void abandon() noexcept override {
    steps_.clear();
    for (Slot& slot : slots_) slot.submitted = 0;
  }

  void score(int slot, std::span<const Token> tokens, const LogitsVisitor& visit) override {
    Slot& s = slots_[size(slot)];
    sequences_.reserve(slot, s.position + static_cast<int>(tokens.size()));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      decoder_.logits(slot, decoder_.append(slot, s.position, tokens.subspan(i, 1)));
      ++s.position;
      check(cudaMemcpyAsync(scored_.data(), sequences_.logits_of(slot), scored_.size() * sizeof(float),
                            cudaMemcpyDeviceToHost, stream_.get()),
            "fetching logits");
      check(cudaStreamSynchronize(stream_.get()), "computing logits");
      visit(i, std::span<const float>(scored_.data(), scored_.size()));
    }
  }

  std::unique_ptr<Snapshot> snapshot(int slot) override {
    std::unique_ptr<Snapshot> snapshot = sequences_.snapshot(slot, slots_[size(slot)].position);
    sequences_.settle();
    return snapshot;
  }

  void restore(int slot, const Snapshot& snapshot) override {
    sequences_.restore(slot, dynamic_cast<const SequenceSnapshot&>(snapshot));
    place(slot, snapshot.position());
    sequences_.settle();
  }

  std::string snapshot_format() const override {
    return fmt::format("CUDA {}, {} layers, form 1", device_, shape_.layers);
  }

  std::unique_ptr<Snapshot> load_snapshot(std::istream& in, const Snapshot* base) override {
    std::unique_ptr<Snapshot> snapshot = sequences_.load(in, dynamic_cast<const SequenceSnapshot*>(base));
    sequences_.settle();
    return snapshot;
  }

 private:
  struct Slot {
    int position = 0;   // tokens that are known of
    int submitted = 0;  // steps under way, each of which may append one
  };
  struct Step {
    std::uint32_t number = 0;
    std::vector<int> slots;
  };

  void reserve_for_step(int slot) {
    const Slot& s = slots_[size(slot)];
    try {
      sequences_.reserve(slot, std::min(s.position + s.submitted + 1, memory_.context));
    } catch (OutOfMemory& fault) {
      fault.set_slot(slot);
      throw;
    }
  }

  void place(int slot, int position) {
    slots_[size(slot)].position = position;
    sampling_.place(slot, position, stream_.get());
  }

  /// Draws come about every millisecond: looking for them all the time is how they are seen at once.
  DrawnRow wait_for(std::uint32_t step, int row) {
    constexpr int looks_between_checks = 1 << 14;
    for (int look = 1;; ++look) {
      if (std::optional<DrawnRow> drawn = sampling_.read(step, row)) return std::move(*drawn);
      if (look % looks_between_checks != 0) continue;
      // A device that has failed never draws.
      const cudaError_t status = cudaStreamQuery(stream_.get());
      if (status == cudaErrorNotReady) {
        cudaGetLastError();
      } else {
        check(status, "computing the next token");
      }
      std::this_thread::yield();
    }
  }

  Shape shape_;
  MemoryPlan memory_;
  std::string device_;
  Stream stream_;
  DeviceWeights weights_;
  Sequences sequences_;
  SampleSlots sampling_;
  Decoder<Model> decoder_;
  Prefill<Model> prefill_;
  PinnedArray<float> scored_;  // [vocabulary]
  std::vector<Slot> slots_;
  std::deque<Step> steps_;
  std::uint32_t last_step_ = 0;
};

/// Asks the runtime step by step; the first fault ends it.
Probe probe_device() {
  Probe probe;
  const auto asked = [&](cudaError_t status) {
    if (status == cudaSuccess) return true;
    cudaGetLastError();
    probe.fault = fault_of(status);
    return false;
  };
  constexpr int index = 0;  // CUDA_VISIBLE_DEVICES says which that is
  cudaDeviceProp properties{};
  if (!asked(cudaRuntimeGetVersion(&probe.runtime)) || !asked(cudaDriverGetVersion(&probe.driver)) ||
      !asked(cudaGetDeviceCount(&probe.devices)) || probe.devices == 0 ||
      !asked(cudaGetDeviceProperties(&properties, index)))
    return probe;
  probe.name = properties.name;
  probe.major = properties.major;
  probe.minor = properties.minor;
  std::size_t free = 0;
  std::size_t total = 0;
  if (!asked(cudaMemGetInfo(&free, &total))) return probe;
  probe.memory = total;
  probe.available = free;
  probe.has_code = has_code_for_device();
  return probe;
}

}  // namespace

Device find_device() {
  Probe probe = probe_device();
  if (std::string reason = reason_against(probe); !reason.empty()) return {.reason = std::move(reason)};
  return {.name = std::move(probe.name), .memory = probe.memory, .available = probe.available};
}

MemoryPlan plan(const Shape& shape, int slots, int context, const SnapshotMemory& snapshots) {
  const SequenceBytes bytes = sequence_bytes(shape);
  const auto each_slot = [&](std::size_t count) { return static_cast<std::uint64_t>(slots) * count; };
  MemoryPlan plan;
  plan.slots = slots;
  plan.context = context;
  plan.snapshots = snapshots;
  plan.weights = device_bytes(shape);
  plan.kv_cache = each_slot(size(page_count(context)) * bytes.page);
  plan.states = each_slot(bytes.recurrent + bytes.windows);
  plan.workspace = decoder_bytes(shape) + prefill_bytes(shape, context) + each_slot(bytes.logits) +
                   SampleSlots::device_bytes(slots, most_rows, shape.vocabulary);
  return plan;
}

std::unique_ptr<Backend> make_backend(const Shape& shape, const Weights& weights, int slots, int context,
                                      const SnapshotMemory& snapshots, const LoadProgress& progress) {
  if (const Device device = find_device(); device.name.empty())
    throw Error("--backend cuda", device.reason, "run with --backend cpu");
  if (slots > most_rows)
    throw Error("--slots",
                fmt::format("is {}, and the CUDA backend runs up to {} at once", slots, most_rows));
  const MemoryPlan memory = plan(shape, slots, context, snapshots);
  if (same_model(shape, demo)) return std::make_unique<CudaBackend<Demo>>(shape, weights, memory, progress);
  assert(same_model(shape, qwen36_35b));
  return std::make_unique<CudaBackend<Qwen36>>(shape, weights, memory, progress);
}

}  // namespace calla::cuda
