// Any bytes are a configuration or an Error; what is accepted is one of the two shapes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "checkpoint/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    static_cast<void>(calla::parse_generation_config(calla::parse_json(text, "fuzz"), "fuzz"));
  } catch (const calla::Error&) {  // refused, which is an answer
  }
  try {
    const calla::ModelConfig config = calla::parse_config(calla::parse_json(text, "fuzz"), "fuzz");
    const bool known = config.shape == calla::demo || config.shape == calla::qwen36_35b;
    if (!known || config.context <= 0 || config.end_tokens.empty()) std::abort();
  } catch (const calla::Error&) {  // refused
  }
  return 0;
}
