#include "cli/synthetic_flag.h"

#include <charconv>

#include <fmt/format.h>

#include "base/json.h"
#include "cli/commands.h"

namespace calla::cli {

Shape parse_synthetic(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view model = text.substr(0, colon);
  if (model != "35b" && model != "demo")
    throw UsageError("", fmt::format("{} is no shape of synthetic weights", quote(text)), "give 35b or demo");
  Shape shape = model == "demo" ? demo : qwen36_35b;
  if (colon == std::string_view::npos) return shape;
  const std::string_view layers = text.substr(colon + 1);
  int count = 0;
  const auto [end, fault] = std::from_chars(layers.data(), layers.data() + layers.size(), count);
  if (fault != std::errc() || end != layers.data() + layers.size() || count < 1 || count > shape.layers) {
    throw UsageError("", fmt::format("{} is no number of layers that {} has", quote(layers), name(shape)),
                     fmt::format("give 1 to {}", shape.layers));
  }
  shape.layers = count;
  return shape;
}

}  // namespace calla::cli
