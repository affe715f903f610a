// Drawing the next token of every slot of a step on the device: Sampler of model/sampler.h, for a step's rows
// at once. SampleSlots (sample_slots.h) owns what is named here.
#pragma once
#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/token.h"
#include "model/sampling.h"
#include "model/shape.h"

namespace calla::cuda {

inline constexpr int max_end_tokens = 16;
inline constexpr int max_alternatives = 20;

/// Steps whose records are kept; more may not be under way.
inline constexpr int record_steps = 4;

/// Peaks and sums are kept for each so many neighbouring tokens.
inline constexpr int sample_group = 64;
constexpr int sample_groups(int vocabulary) { return vocabulary / sample_group; }

struct TokenBias {
  Token token;
  float bias;
};

/// SamplingParams as the kernels read them, and the number of tokens drawn so far.
struct SlotSampling {
  float temperature;
  int top_k;
  float top_p;
  float min_p;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  int vocabulary;  // ids from here on are never drawn
  int top_logprobs;
  int end_tokens;
  Token end_token[max_end_tokens];
  int biases;
  const TokenBias* bias;  // [biases] in device memory, by token; equal tokens in their given order
  std::uint64_t seed;
  std::uint64_t draws;
  double rate;  // 1 / temperature
  // log2 e / temperature as the sum of two floats: 2^(scale x) is the weight of a logit x below the largest.
  float scale_high;
  float scale_low;
};

constexpr bool counts_output(const SlotSampling& s) {
  return s.repetition_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0;
}
constexpr bool is_adjusted(const SlotSampling& s) { return s.biases > 0 || counts_output(s); }
/// Whether tokens are drawn in the order of their probability, and not in that of their ids.
constexpr bool is_ranked(const SlotSampling& s) { return s.top_k > 0 || s.top_p < 1 || s.min_p > 0; }
/// Whether the sum of all weights counts.
constexpr bool needs_sums(const SlotSampling& s) {
  return s.temperature > 0 && s.top_k <= 0 && (s.top_p < 1 || s.min_p <= 0);
}

/// What a row's draw gave, in pinned memory. `head` is written last and at once.
struct SampleRecord {
  std::uint64_t head;  // step << 32 | SampleFlag << 24 | token
  float logprob;
  int alternatives;
  TokenLogprob alternative[max_alternatives];
};
inline constexpr int record_token_bits = 24;
enum SampleFlag : std::uint32_t {
  sample_has_token = 1,  // else the row has no slot, or one that has ended
  sample_is_end = 2,
  sample_has_logprobs = 4,
  sample_is_fault = 8,  // a logit is not finite
};

/// The memory of a step.
struct SampleStep {
  const float* logits = nullptr;  // [slots][vocabulary]
  const int* slots = nullptr;     // [rows], -1: none
  int* tokens = nullptr;          // [rows] out: the token drawn, 0 where the row is not active
  int* active = nullptr;          // [rows] out: 1 where a token was appended

  int* positions = nullptr;                // [slots] tokens of the slot: goes up by one where `active`
  int* ended = nullptr;                    // [slots] 1: the slot stays as it is
  SlotSampling* sampling = nullptr;        // [slots]
  std::uint32_t* counts = nullptr;         // [slots][vocabulary] how often the output has a token
  const std::uint32_t* prompts = nullptr;  // [slots][vocabulary / 32] bits: whether the prompt has it
  std::uint32_t* step = nullptr;           // the number of steps so far
  SampleRecord* records = nullptr;         // [record_steps][record_rows], pinned
  int record_rows = 0;

  // Workspace: of each group the largest value x and the sum of 2^(scale (x - largest)), of the adjusted and
  // of the model's own logits, where they are needed.
  float* peaks = nullptr;      // [rows][groups]
  float* sums = nullptr;       // [rows][groups]
  float* raw_peaks = nullptr;  // [rows][groups]
  float* raw_sums = nullptr;   // [rows][groups]
  float* adjusted = nullptr;   // [rows][vocabulary]
};

/// Two kernels of a chain of programmatic launches. `rows` at most record_rows.
template <Shape S>
void launch_sample(const SampleStep& step, int rows, cudaStream_t stream);

/// Sets a slot's position; the slot has not ended.
void launch_place_slot(int* position, int* ended, int value, cudaStream_t stream);

}  // namespace calla::cuda
