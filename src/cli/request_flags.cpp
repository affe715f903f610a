#include "cli/request_flags.h"

#include <CLI/CLI.hpp>

#include <fmt/format.h>

namespace calla::cli {

void RequestFlags::apply(ChatRequest& request) const {
  request.sampling = sampling;
  if (greedy) request.sampling.temperature = 0.0F;
  if (no_think) request.options.enable_thinking = false;
  request.thinking_budget = thinking_budget;
  request.max_tokens = max_tokens;
  request.stop = stop;
}

CLI::Validator at_least(int least) {
  return CLI::Validator(
      [least](const std::string& text) {
        int value = 0;
        const bool holds = CLI::detail::lexical_cast(text, value) && value >= least;
        return holds ? std::string() : fmt::format("{} must be a whole number of at least {}", text, least);
      },
      "");
}

void add_request_flags(CLI::App& command, RequestFlags& flags) {
  command.add_flag("--no-think", flags.no_think, "Answer at once, without reasoning first");
  command
      .add_option("--thinking-budget", flags.thinking_budget, "Close the reasoning after this many tokens")
      ->type_name("N")
      ->check(at_least(0));
  command
      .add_option("--max-tokens", flags.max_tokens,
                  "End the reply after this many tokens, reasoning included")
      ->type_name("N")
      ->check(at_least(1));
  command.add_option("--stop", flags.stop, "End the answer before this text (may be given several times)")
      ->type_name("TEXT")
      ->allow_extra_args(false);

  constexpr const char* sampling = "Sampling (defaults: the model's generation_config.json)";
  const auto option = [&](const char* name, auto& value, const char* help, const char* type) {
    command.add_option(name, value, help)->type_name(type)->group(sampling);
  };
  command.add_flag("--greedy", flags.greedy, "Always the most probable token")->group(sampling);
  option("--seed", flags.sampling.seed, "The same seed gives the same reply", "N");
  option("--temperature", flags.sampling.temperature, "0 to 2; lower is safer, higher is more varied", "X");
  option("--top-k", flags.sampling.top_k, "Only the K most probable tokens; 0: all", "K");
  option("--top-p", flags.sampling.top_p, "Only the most probable tokens that together have this share", "X");
  option("--min-p", flags.sampling.min_p, "Only tokens at least this probable relative to the best", "X");
  option("--presence-penalty", flags.sampling.presence_penalty, "-2 to 2; against words already used", "X");
  option("--frequency-penalty", flags.sampling.frequency_penalty, "-2 to 2; against words used often", "X");
  option("--repetition-penalty", flags.sampling.repetition_penalty,
         "1: off; above 1 against words of prompt and reply", "X");
}

}  // namespace calla::cli
