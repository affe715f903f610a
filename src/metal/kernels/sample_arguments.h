// What the host and the sampling kernels agree on. Read by the C++ compiler and by Metal's: plain 32-bit
// fields only.
//
//   sample_greedy  grid (rows)                             sample_threads
//   sample_scan    grid (vocabulary / scan_tokens, rows)   scan_threads
//   sample_draw    grid (rows)                             sample_threads
//   sample_report  grid (rows)                             sample_threads
//   advance        grid (1)                                advance_threads
//   place_slot     grid (1)                                advance_threads
#pragma once

namespace calla_kernels {

enum : unsigned {
  sample_threads = 512,
  scan_threads = 128,
  scan_tokens = scan_threads * 2,
  advance_threads = 32,
  sample_rows = 16,  // of a dispatch
  record_steps = 4,  // steps whose records are kept
  max_end_tokens = 16,
  max_alternatives = 20,
};

/// What of its parameters a slot uses.
enum SampleUse : unsigned {
  use_greedy = 1,    // the most probable token is taken
  use_adjusted = 2,  // logits are changed before anything else: biases or penalties
  use_counts = 4,    // penalties
  use_ranked = 8,    // tokens are drawn in the order of their probability, and not in that of their ids
  use_top_p = 16,
  use_min_p = 32,
  use_sums = 64,  // the sum of all weights counts
  use_logprobs = 128,
};
inline bool is_scanned(unsigned use) { return (use & (use_adjusted | use_sums | use_logprobs)) != 0; }

/// SamplingParams as the kernels read them.
struct SlotSampling {
  unsigned use;
  unsigned vocabulary;  // ids from here on are never drawn
  unsigned top_k;       // 0: off
  unsigned top_p;       // in units of 2^-32
  // temperature * log(min_p) as the sum of two floats: how far below the largest value a token may lie.
  float min_p_high;
  float min_p_low;
  // log2(e) / temperature as the sum of two floats: 2^(scale * x) is the weight of a value x below the
  // largest.
  float scale_high;
  float scale_low;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  unsigned seed_low;
  unsigned seed_high;
  unsigned biases;
  unsigned alternatives;
  unsigned end_tokens;
  unsigned end_token[max_end_tokens];
};

/// By token; equal tokens in their given order.
struct TokenBias {
  unsigned token;
  float bias;
};

/// The rows of a dispatch.
struct SampleRows {
  unsigned slots[sample_rows];
  unsigned bias_stride;  // biases that a slot has room for
  unsigned ring;         // the step's place among record_steps
  unsigned ring_stride;  // slots: records are [record_steps][slots]
};

enum SampleFlag : unsigned {
  sample_has_token = 1,  // else the slot has ended before
  sample_is_end = 2,     // the token is one of end_token: it is not appended
  sample_is_fault = 4,   // a logit is not finite; the slot has ended
};

/// What a row's draw gave.
struct SampleRecord {
  unsigned flags;
  unsigned token;
  float logit;  // the model's own
};

struct TokenLogit {
  unsigned token;
  float logit;
};

/// What log-probabilities are made of: log p = logit - peak - log(mass / 2^mass_bits).
struct SampleReport {
  float peak;
  unsigned mass_low;
  unsigned mass_high;
  TokenLogit alternative[max_alternatives];  // most probable first
};

enum : unsigned { mass_bits = 44 };

struct PlaceArguments {
  unsigned slot;
  unsigned position;
  unsigned token;
};

}  // namespace calla_kernels
