#include "cli/bench_measure.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace calla::cli {
namespace {

constexpr int warm_up_steps = 2;

class Timer {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// One pass over the workload with `steps` timed steps.
Round run_round(Backend& backend, const Workload& workload, std::span<const std::vector<Token>> prompts,
                int steps, const BenchProgress& progress) {
  std::vector<int> slots(prompts.size());
  std::iota(slots.begin(), slots.end(), 0);
  // What the round before has begun, the step behind its last token, must not count: logits are waited for.
  backend.reset(slots.front());
  backend.score(slots.front(), std::span(prompts.front()).first(1),
                [](std::size_t, std::span<const float>) {});
  for (const int slot : slots) {
    backend.reset(slot);
    backend.set_sampling(slot, {.temperature = 0.0F}, {});
  }

  Round round;
  const Timer prefill;
  for (const int slot : slots) {
    std::span<const Token> rest = prompts[static_cast<std::size_t>(slot)];
    while (!rest.empty()) {
      const auto piece = rest.first(std::min(rest.size(), static_cast<std::size_t>(backend.prefill_chunk())));
      rest = rest.subspan(piece.size());
      backend.prefill(slot, piece, rest.empty());
      progress(static_cast<int>(piece.size()));
    }
  }
  backend.submit(slots);
  backend.submit(slots);
  static_cast<void>(backend.collect());
  round.prefill_seconds = prefill.seconds();

  round.digest = empty_digest;
  const Timer decode;
  for (int step = 0; step < steps; ++step) {
    backend.submit(slots);
    for (const SampledToken& token : backend.collect())
      round.digest = token_digest({&token.token, 1}, round.digest);
    progress(workload.batch);
  }
  round.decode_seconds = decode.seconds();
  static_cast<void>(backend.collect());
  return round;
}

}  // namespace

std::vector<Token> bench_prompt(int length, int first, int vocabulary) {
  std::vector<Token> tokens(static_cast<std::size_t>(length));
  std::uint32_t index = static_cast<std::uint32_t>(first);
  for (Token& token : tokens) {
    const std::uint32_t hashed = index++ * 2654435761U;
    token = static_cast<Token>(hashed % static_cast<std::uint32_t>(vocabulary));
  }
  return tokens;
}

std::uint64_t token_digest(std::span<const Token> tokens, std::uint64_t digest) {
  for (const Token token : tokens) digest = (digest ^ static_cast<std::uint32_t>(token)) * 0x100000001B3;
  return digest;
}

std::uint64_t progress_total(const Workload& w) {
  const int steps = warm_up_steps + w.rounds * w.steps;
  return static_cast<std::uint64_t>(w.batch) *
         (static_cast<std::uint64_t>(w.rounds + 1) * static_cast<std::uint64_t>(w.context) +
          static_cast<std::uint64_t>(steps));
}

std::vector<Round> measure(Backend& backend, const Workload& workload, const BenchProgress& progress) {
  std::vector<std::vector<Token>> prompts;
  prompts.reserve(static_cast<std::size_t>(workload.batch));
  for (int slot = 0; slot < workload.batch; ++slot)
    prompts.push_back(bench_prompt(workload.context, slot, workload.vocabulary));
  run_round(backend, workload, prompts, warm_up_steps, progress);
  std::vector<Round> rounds;
  rounds.reserve(static_cast<std::size_t>(workload.rounds));
  for (int i = 0; i < workload.rounds; ++i)
    rounds.push_back(run_round(backend, workload, prompts, workload.steps, progress));
  return rounds;
}

}  // namespace calla::cli
