#include "metal/sample_slots.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "metal/encode.h"
#include "metal/kernels/arguments.h"

namespace calla::metal {
namespace {

using namespace calla_kernels;

constexpr std::size_t first_biases = 512;  // a slot has room for; a request seldom has more than 300

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

/// A number as the sum of two floats.
struct TwoFloats {
  explicit TwoFloats(double value)
      : high(static_cast<float>(value)), low(static_cast<float>(value - static_cast<double>(high))) {}
  float high;
  float low;
};

unsigned use_of(const SamplingParams& params) {
  const bool counts =
      params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0;
  unsigned use = 0;
  const auto set = [&use](SampleUse bit, bool condition) { use |= condition ? bit : 0U; };
  set(use_counts, counts);
  set(use_adjusted, counts || !params.logit_bias.empty());
  set(use_logprobs, params.top_logprobs >= 0);
  if (params.temperature <= 0) return use | use_greedy;
  const bool top_p = params.top_p < 1;
  const bool min_p = params.min_p > 0;
  set(use_top_p, top_p);
  set(use_min_p, min_p);
  set(use_ranked, params.top_k > 0 || top_p || min_p);
  set(use_sums, params.top_k <= 0 && (top_p || !min_p));
  return use;
}

SlotSampling slot_sampling(const SamplingParams& params, int vocabulary) {
  SlotSampling s{};
  s.use = use_of(params);
  s.vocabulary = static_cast<unsigned>(std::min(params.vocabulary, vocabulary));
  s.top_k = static_cast<unsigned>(std::max(params.top_k, 0));
  s.top_p = static_cast<unsigned>(
      std::ldexp(std::clamp(static_cast<double>(params.top_p), 0.0, 0x1p0 - 0x1p-32), 32));
  s.repetition_penalty = params.repetition_penalty;
  s.presence_penalty = params.presence_penalty;
  s.frequency_penalty = params.frequency_penalty;
  s.seed_low = static_cast<unsigned>(params.seed);
  s.seed_high = static_cast<unsigned>(params.seed >> 32);
  s.biases = static_cast<unsigned>(params.logit_bias.size());
  s.alternatives =
      static_cast<unsigned>(std::clamp(params.top_logprobs, 0, static_cast<int>(max_alternatives)));
  if (params.end_tokens.size() > max_end_tokens)
    throw Error("the sampling", "has more than 16 end tokens", "give fewer stop tokens");
  s.end_tokens = static_cast<unsigned>(params.end_tokens.size());
  std::copy(params.end_tokens.begin(), params.end_tokens.end(), s.end_token);

  s.min_p_high = std::numeric_limits<float>::lowest();
  if (params.temperature <= 0) return s;
  constexpr double log2_e = 1.4426950408889634;
  constexpr double coldest = 1e30;  // colder is as good as greedy
  const double temperature{params.temperature};
  const TwoFloats scale(log2_e * std::min(1 / temperature, coldest));
  s.scale_high = scale.high;
  s.scale_low = scale.low;
  if (params.min_p > 0) {
    const double lowest{s.min_p_high};
    const TwoFloats depth(std::max(temperature * std::log(static_cast<double>(params.min_p)), lowest));
    s.min_p_high = depth.high;
    s.min_p_low = depth.low;
  }
  return s;
}

std::size_t groups(int vocabulary) { return size(vocabulary) / head_rows; }

/// Calls encode(rows, grid) for at most sample_rows of the slots at a time.
template <class Encode>
void in_dispatches(std::span<const unsigned> slots, SampleRows rows, Encode encode) {
  while (!slots.empty()) {
    const auto some = slots.first(std::min<std::size_t>(slots.size(), sample_rows));
    std::fill(std::begin(rows.slots), std::end(rows.slots), no_slot);
    std::copy(some.begin(), some.end(), rows.slots);
    encode(rows, static_cast<std::uint32_t>(some.size()));
    slots = slots.subspan(some.size());
  }
}

}  // namespace

SampleSlots::SampleSlots(Device& device, int slots, int vocabulary)
    : slots_(slots), vocabulary_(vocabulary), bias_stride_(first_biases), device_(device) {
  const auto allocate = [&](std::size_t bytes_of_slot) {
    return device.allocate(size(slots) * bytes_of_slot, Hazards::tracked);
  };
  sampling_ = allocate(sizeof(SlotSampling));
  biases_ = allocate(bias_stride_ * sizeof(TokenBias));
  counts_ = allocate(size(vocabulary) * sizeof(std::uint32_t));
  prompts_ = allocate(size(vocabulary) / 8);
  adjusted_ = allocate(size(vocabulary) * sizeof(float));
  group_peaks_ = allocate(groups(vocabulary) * sizeof(float));
  group_sums_ = allocate(groups(vocabulary) * sizeof(float));
  raw_sums_ = allocate(groups(vocabulary) * sizeof(float));
  records_ = allocate(record_steps * sizeof(SampleRecord));
  reports_ = allocate(record_steps * sizeof(SampleReport));
  greedy_ = device.pipeline("sample_greedy", sample_threads);
  scan_ = device.pipeline("sample_scan", scan_threads);
  draw_ = device.pipeline("sample_draw", sample_threads);
  report_ = device.pipeline("sample_report", sample_threads);
  for (int slot = 0; slot < slots; ++slot) set(slot, {}, {});
}

std::size_t SampleSlots::device_bytes(int slots, int vocabulary) {
  return size(slots) * (sizeof(SlotSampling) + first_biases * sizeof(TokenBias) +
                        size(vocabulary) * (sizeof(std::uint32_t) + sizeof(float)) + size(vocabulary) / 8 +
                        3 * groups(vocabulary) * sizeof(float) +
                        record_steps * (sizeof(SampleRecord) + sizeof(SampleReport)));
}

std::span<const SlotSampling> SampleSlots::sampling() const { return sampling_->as<SlotSampling>(); }

void SampleSlots::set(int slot, const SamplingParams& params, std::span<const Token> prompt) {
  const SlotSampling s = slot_sampling(params, vocabulary_);
  set_biases(slot, params);
  sampling_->as<SlotSampling>()[size(slot)] = s;
  if ((s.use & use_counts) == 0) return;
  const auto counts = counts_->as<std::uint32_t>().subspan(size(slot) * size(vocabulary_), size(vocabulary_));
  std::fill(counts.begin(), counts.end(), 0U);
  const std::size_t words = size(vocabulary_) / 32;
  const auto bits = prompts_->as<std::uint32_t>().subspan(size(slot) * words, words);
  std::fill(bits.begin(), bits.end(), 0U);
  if (params.repetition_penalty == 1) return;
  for (const Token token : prompt) {
    if (token >= 0 && token < vocabulary_) bits[size(token) / 32] |= 1U << (token % 32);
  }
}

void SampleSlots::set_biases(int slot, const SamplingParams& params) {
  const std::size_t count = params.logit_bias.size();
  if (count > bias_stride_) {
    std::unique_ptr<Buffer> wider =
        device_.allocate(size(slots_) * count * sizeof(TokenBias), Hazards::tracked);
    for (std::size_t i = 0; i < size(slots_); ++i)
      std::copy_n(biases_->as<TokenBias>().begin() + static_cast<std::ptrdiff_t>(i * bias_stride_),
                  bias_stride_, wider->as<TokenBias>().begin() + static_cast<std::ptrdiff_t>(i * count));
    biases_ = std::move(wider);
    bias_stride_ = count;
  }
  // Infinite ones forbid and force just as well, and leave numbers to compare.
  constexpr float largest = 1e30F;
  const auto biases = biases_->as<TokenBias>().subspan(size(slot) * bias_stride_, count);
  std::transform(params.logit_bias.begin(), params.logit_bias.end(), biases.begin(), [=](const auto& bias) {
    return TokenBias{static_cast<unsigned>(bias.first), std::clamp(bias.second, -largest, largest)};
  });
  std::stable_sort(biases.begin(), biases.end(),
                   [](const TokenBias& a, const TokenBias& b) { return a.token < b.token; });
}

int SampleSlots::levels(std::span<const int> slots) const {
  int levels = 0;
  for (const int slot : slots) {
    if (slot >= 0) levels = std::max(levels, is_scanned(sampling()[size(slot)].use) ? 2 : 1);
  }
  return levels;
}

void SampleSlots::encode(Pass& pass, std::span<const int> slots, std::uint32_t step, const View& logits,
                         const View& peaks, const View& states) {
  std::vector<unsigned> drawn;
  std::vector<unsigned> scanned;
  std::vector<unsigned> reported;
  bool greedy = true;
  std::vector<StepRow>& step_rows = rows_[ring(step)];
  step_rows.clear();
  for (const int slot : slots) {
    step_rows.push_back({slot});
    if (slot < 0) continue;
    const SlotSampling& s = sampling()[size(slot)];
    const auto id = static_cast<unsigned>(slot);
    drawn.push_back(id);
    greedy = greedy && (s.use & use_greedy) != 0 && !is_scanned(s.use);
    if (is_scanned(s.use)) scanned.push_back(id);
    if ((s.use & use_logprobs) == 0) continue;
    reported.push_back(id);
    step_rows.back().alternatives = static_cast<int>(s.alternatives);
  }

  const SampleRows common{{},
                          static_cast<unsigned>(bias_stride_),
                          static_cast<unsigned>(ring(step)),
                          static_cast<unsigned>(slots_)};
  if (greedy) {
    in_dispatches(drawn, common, [&](const SampleRows& rows, std::uint32_t count) {
      dispatch(pass, greedy_, {count}, logits, peaks, sampling_, states, records_, rows);
    });
    return;
  }
  const auto chunks = static_cast<std::uint32_t>(vocabulary_) / scan_tokens;
  in_dispatches(scanned, common, [&](const SampleRows& rows, std::uint32_t count) {
    dispatch(pass, scan_, {chunks, count}, logits, peaks, sampling_, biases_, counts_, prompts_, adjusted_,
             group_peaks_, group_sums_, raw_sums_, rows);
  });
  if (!scanned.empty()) pass.barrier();
  in_dispatches(drawn, common, [&](const SampleRows& rows, std::uint32_t count) {
    dispatch(pass, draw_, {count}, logits, peaks, adjusted_, group_peaks_, group_sums_, sampling_, counts_,
             states, records_, rows);
  });
  in_dispatches(reported, common, [&](const SampleRows& rows, std::uint32_t count) {
    dispatch(pass, report_, {count}, logits, peaks, raw_sums_, sampling_, reports_, rows);
  });
}

DrawnRow SampleSlots::read(std::uint32_t step, int row) const {
  const StepRow& step_row = rows_[ring(step)][size(row)];
  DrawnRow drawn;
  if (step_row.slot < 0) return drawn;
  const std::size_t at = ring(step) * size(slots_) + size(step_row.slot);
  const SampleRecord& record = records_->as<SampleRecord>()[at];
  drawn.has_token = (record.flags & sample_has_token) != 0;
  drawn.fault = (record.flags & sample_is_fault) != 0;
  if (!drawn.has_token) return drawn;
  drawn.sampled.slot = step_row.slot;
  drawn.sampled.token = static_cast<Token>(record.token);
  drawn.sampled.end = (record.flags & sample_is_end) != 0;
  if (step_row.alternatives < 0) return drawn;

  const SampleReport& report = reports_->as<SampleReport>()[at];
  const std::uint64_t mass = std::uint64_t{report.mass_high} << 32 | report.mass_low;
  const double normaliser = static_cast<double>(report.peak) +
                            std::log(std::ldexp(static_cast<double>(mass), -static_cast<int>(mass_bits)));
  const auto logprob = [normaliser](float logit) {
    return static_cast<float>(static_cast<double>(logit) - normaliser);
  };
  drawn.sampled.logprob = logprob(record.logit);
  for (int i = 0; i < step_row.alternatives; ++i) {
    const TokenLogit& alternative = report.alternative[i];
    drawn.sampled.top_logprobs.push_back({static_cast<Token>(alternative.token), logprob(alternative.logit)});
  }
  return drawn;
}

}  // namespace calla::metal
