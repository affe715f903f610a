#include <limits>

#include "base/error.h"
#include "checkpoint/config.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/fields.h"

namespace calla {

GenerationConfig parse_generation_config(const Json& config, std::string_view where) {
  constexpr std::string_view advice = "mend the file, or remove it to sample with Calla's own defaults";
  if (!config.is_object()) throw Error(where, "is no JSON object", advice);
  constexpr int any_int = std::numeric_limits<int>::max();
  FaultList faults;
  const Fields fields(&config, "", faults);
  const auto number = [&](std::string_view key, double low, double high) -> std::optional<float> {
    const std::optional<double> value = fields.number(key, low, high);
    if (!value) return std::nullopt;
    return static_cast<float>(*value);
  };
  GenerationConfig generation{.do_sample = fields.boolean("do_sample"),
                              .temperature = number("temperature", 0, 100),
                              .top_k = fields.integer("top_k", 0, any_int),
                              .top_p = number("top_p", 0, 1),
                              .min_p = number("min_p", 0, 1),
                              .presence_penalty = number("presence_penalty", -2, 2),
                              .frequency_penalty = number("frequency_penalty", -2, 2),
                              .repetition_penalty = number("repetition_penalty", 0.01, 100),
                              .end_tokens = fields.tokens("eos_token_id", any_int)};
  faults.raise(where, "asks for sampling that does not exist:", advice);
  return generation;
}

GenerationConfig read_generation_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "generation_config.json";
  std::error_code fault;
  if (!std::filesystem::exists(path, fault)) return {};
  return parse_generation_config(read_json_file(path), path.string());
}

}  // namespace calla
