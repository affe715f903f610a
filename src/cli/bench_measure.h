// The measurement of one context length.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/token.h"
#include "model/backend.h"

namespace calla::cli {

/// The prompt that every measurement of a context takes, of `length` tokens: no two neighbours are alike, and
/// all ids come up. Token i is (i + first) * 2654435761 mod 2^32 mod vocabulary.
std::vector<Token> bench_prompt(int length, int first, int vocabulary);

/// 64 bits that tell one sequence of tokens from another: FNV-1a over whole ids. Goes on from `digest`.
inline constexpr std::uint64_t empty_digest = 0xCBF29CE484222325;
std::uint64_t token_digest(std::span<const Token> tokens, std::uint64_t digest = empty_digest);

/// What is measured, at one context length.
struct Workload {
  int context = 0;     // tokens of the prompt
  int steps = 0;       // decode steps that are timed
  int rounds = 0;      // how often all is repeated
  int batch = 0;       // slots that decode together
  int vocabulary = 0;  // of the model
};

/// Positions that a slot must have for a workload: the prompt, its steps, the step before them and the one in
/// flight behind them.
constexpr int positions_for(int context, int steps) { return context + steps + 2; }

struct Round {
  double prefill_seconds = 0;  // of all slots' prompts, to the first token
  double decode_seconds = 0;   // of all steps
  std::uint64_t digest = 0;    // of the decoded tokens, step by step, the first token excluded
};

/// Tokens that were read or decoded since the last call.
using BenchProgress = std::function<void(int tokens)>;

/// How many tokens BenchProgress hears of in all.
std::uint64_t progress_total(const Workload& workload);

/// Warms up with the workload's own shape (the prompts and two steps), then measures `rounds` times on empty
/// slots. Greedy, without end tokens; one step is always in flight: n + 1 is submitted before n is collected.
std::vector<Round> measure(Backend& backend, const Workload& workload, const BenchProgress& progress);

}  // namespace calla::cli
