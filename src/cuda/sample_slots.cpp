#include "cuda/sample_slots.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/error.h"

namespace calla::cuda {
namespace {

constexpr std::size_t first_biases = 512;  // a slot has room for; a request seldom has more than 300

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

/// Everything but the biases.
SlotSampling slot_sampling(const SamplingParams& params, int vocabulary) {
  SlotSampling s{};
  s.temperature = params.temperature;
  s.top_k = params.top_k;
  s.top_p = params.top_p;
  s.min_p = params.min_p;
  s.repetition_penalty = params.repetition_penalty;
  s.presence_penalty = params.presence_penalty;
  s.frequency_penalty = params.frequency_penalty;
  s.vocabulary = std::min(params.vocabulary, vocabulary);
  s.top_logprobs = std::min(params.top_logprobs, max_alternatives);
  s.seed = params.seed;
  if (params.end_tokens.size() > max_end_tokens)
    throw Error("the sampling", "has more than 16 end tokens", "give fewer stop tokens");
  s.end_tokens = static_cast<int>(params.end_tokens.size());
  std::copy(params.end_tokens.begin(), params.end_tokens.end(), s.end_token);
  if (params.temperature > 0) {
    constexpr double log2_e = 1.4426950408889634;
    constexpr double largest = 1e30;  // colder is as good as greedy
    s.rate = std::min(1 / static_cast<double>(params.temperature), largest);
    const double scale = log2_e * s.rate;
    s.scale_high = static_cast<float>(scale);
    s.scale_low = static_cast<float>(scale - static_cast<double>(s.scale_high));
  }
  return s;
}

}  // namespace

SampleSlots::SampleSlots(int slots, int rows, int vocabulary)
    : rows_(rows),
      vocabulary_(vocabulary),
      positions_(size(slots)),
      ended_(size(slots)),
      sampling_(size(slots)),
      counts_(size(slots) * size(vocabulary)),
      prompts_(size(slots) * size(vocabulary / 32)),
      step_(1),
      groups_(4 * size(rows) * size(sample_groups(vocabulary))),
      adjusted_(size(rows) * size(vocabulary)),
      records_(size(record_steps) * size(rows)),
      staging_(size(slots)) {
  for (Staging& staging : staging_) {
    staging.sampling = PinnedArray<SlotSampling>(1);
    staging.prompt = PinnedArray<std::uint32_t>(size(vocabulary / 32));
    staging.biases = PinnedArray<TokenBias>(first_biases);
    staging.device_biases = DeviceArray<TokenBias>(first_biases);
    staging.copied = make_event();
  }
  std::fill_n(records_.data(), records_.size(), SampleRecord{});
  const Stream stream = make_stream();
  const auto zero = [&](const auto& array) {
    check(cudaMemsetAsync(array.data(), 0, array.bytes(), stream.get()), "clearing the sampling state");
  };
  zero(positions_);
  zero(ended_);
  zero(counts_);
  zero(prompts_);
  zero(step_);
  for (int slot = 0; slot < slots; ++slot) set(slot, {}, {}, stream.get());
  check(cudaStreamSynchronize(stream.get()), "clearing the sampling state");
}

std::size_t SampleSlots::device_bytes(int slots, int rows, int vocabulary) {
  const std::size_t slot = 2 * sizeof(int) + sizeof(SlotSampling) + size(vocabulary) * sizeof(std::uint32_t) +
                           size(vocabulary) / 8 + first_biases * sizeof(TokenBias);
  const std::size_t row = (4 * size(sample_groups(vocabulary)) + size(vocabulary)) * sizeof(float);
  return size(slots) * slot + size(rows) * row + sizeof(std::uint32_t);
}

void SampleSlots::set(int slot, const SamplingParams& params, std::span<const Token> prompt,
                      cudaStream_t stream) {
  Staging& staging = staging_[size(slot)];
  check(cudaEventSynchronize(staging.copied.get()), "waiting for a slot's last setting");
  const auto copy = [&](void* to, const void* from, std::size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "setting how a slot samples");
  };
  const auto clear = [&](void* at, std::size_t bytes) {
    check(cudaMemsetAsync(at, 0, bytes, stream), "setting how a slot samples");
  };

  SlotSampling& s = staging.sampling[0];
  s = slot_sampling(params, vocabulary_);
  stage_biases(staging, params, stream);
  s.biases = static_cast<int>(params.logit_bias.size());
  s.bias = staging.device_biases.data();
  copy(staging.device_biases.data(), staging.biases.data(), params.logit_bias.size() * sizeof(TokenBias));
  copy(sampling_.data() + slot, &s, sizeof(s));
  clear(ended_.data() + slot, sizeof(int));
  if (counts_output(s)) {
    const std::size_t bytes = size(vocabulary_) * sizeof(std::uint32_t);
    clear(counts_.data() + size(slot) * size(vocabulary_), bytes);
  }
  if (s.repetition_penalty != 1) {
    const std::size_t words = size(vocabulary_ / 32);
    std::fill_n(staging.prompt.data(), words, 0U);
    for (const Token token : prompt) {
      if (token >= 0 && token < vocabulary_) staging.prompt[size(token / 32)] |= 1U << (token % 32);
    }
    copy(prompts_.data() + size(slot) * words, staging.prompt.data(), words * sizeof(std::uint32_t));
  }
  check(cudaEventRecord(staging.copied.get(), stream), "setting how a slot samples");
}

/// By token; the order of equal ones counts.
void SampleSlots::stage_biases(Staging& staging, const SamplingParams& params, cudaStream_t stream) {
  const std::size_t count = params.logit_bias.size();
  if (count > staging.biases.size()) {
    // Steps that read the old list may still run.
    check(cudaStreamSynchronize(stream), "making room for logit biases");
    PinnedArray<TokenBias> host(count);
    DeviceArray<TokenBias> device(count);
    staging.biases = std::move(host);
    staging.device_biases = std::move(device);
  }
  const std::span<TokenBias> biases(staging.biases.data(), count);
  std::transform(params.logit_bias.begin(), params.logit_bias.end(), biases.begin(), [](const auto& bias) {
    return TokenBias{bias.first, bias.second};
  });
  std::stable_sort(biases.begin(), biases.end(),
                   [](const TokenBias& a, const TokenBias& b) { return a.token < b.token; });
}

void SampleSlots::place(int slot, int position, cudaStream_t stream) {
  launch_place_slot(positions_.data() + slot, ended_.data() + slot, position, stream);
}

SampleStep SampleSlots::step(const float* logits, const int* slots, int* tokens, int* active) const {
  const std::size_t groups = size(rows_) * size(sample_groups(vocabulary_));
  return {.logits = logits,
          .slots = slots,
          .tokens = tokens,
          .active = active,
          .positions = positions_.data(),
          .ended = ended_.data(),
          .sampling = sampling_.data(),
          .counts = counts_.data(),
          .prompts = prompts_.data(),
          .step = step_.data(),
          .records = records_.data(),
          .record_rows = rows_,
          .peaks = groups_.data(),
          .sums = groups_.data() + groups,
          .raw_peaks = groups_.data() + 2 * groups,
          .raw_sums = groups_.data() + 3 * groups,
          .adjusted = adjusted_.data()};
}

std::optional<DrawnRow> SampleSlots::read(std::uint32_t step, int row) const {
  SampleRecord& record = records_[step % record_steps * size(rows_) + size(row)];
  const std::uint64_t head = std::atomic_ref(record.head).load(std::memory_order_acquire);
  if (head >> 32 != step) return std::nullopt;
  DrawnRow drawn;
  const auto flags = static_cast<std::uint32_t>(head) >> record_token_bits;
  drawn.has_token = (flags & sample_has_token) != 0;
  drawn.fault = (flags & sample_is_fault) != 0;
  drawn.sampled.token = static_cast<Token>(head & ((1U << record_token_bits) - 1));
  drawn.sampled.end = (flags & sample_is_end) != 0;
  if ((flags & sample_has_logprobs) != 0) {
    drawn.sampled.logprob = record.logprob;
    drawn.sampled.top_logprobs.assign(record.alternative, record.alternative + record.alternatives);
  }
  return drawn;
}

}  // namespace calla::cuda
