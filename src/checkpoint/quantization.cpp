#include "checkpoint/quantization.h"

#include <algorithm>
#include <set>
#include <string>

#include <fmt/format.h>

#include "base/error.h"

namespace calla {
namespace {
constexpr int weight_bits = 4;
constexpr int gate_bits = 8;

void check_layout(const Fields& block, int bits) {
  block.expect("bits", bits);
  block.expect("group_size", Shape::quantization_group);
  block.expect("mode", "affine", Presence::optional);
}

bool is_layout_key(std::string_view key) { return key == "bits" || key == "group_size" || key == "mode"; }

/// The matrices that keep 8 bits, by the names that the block uses.
std::set<std::string> gates(const Shape& shape, bool with_mtp) {
  std::set<std::string> names;
  const auto add_layer = [&](const std::string& layer) {
    names.insert(layer + ".mlp.gate");
    names.insert(layer + ".mlp.shared_expert_gate");
  };
  for (int i = 0; i < shape.layers; ++i) add_layer(fmt::format("language_model.model.layers.{}", i));
  if (with_mtp) add_layer("mtp.layers.0");
  return names;
}

void check_overrides(const Json& value, const Fields& block, const Shape& shape) {
  const bool with_mtp = std::any_of(value.items().begin(), value.items().end(),
                                    [](const auto& item) { return item.key().starts_with("mtp."); });
  const std::set<std::string> expected = gates(shape, with_mtp);
  for (const auto& [key, ignored] : value.items()) {
    if (!is_layout_key(key) && !expected.contains(key)) block.fault(key, "4 bits as everywhere, no override");
  }
  for (const std::string& name : expected) {
    if (block.find(name) == nullptr) {
      block.fault(name, "an override to 8 bits");
      continue;
    }
    const Fields gate = block.object(name);
    if (!block.find(name)->is_object()) continue;
    check_layout(gate, gate_bits);
    for (const auto& [key, ignored] : block.find(name)->items()) {
      if (!is_layout_key(key)) gate.fault(key, "nothing beside bits, group_size and mode");
    }
  }
}
}  // namespace

void check_quantization_kind(const Json& config, std::string_view where) {
  const auto absent = [&](const char* key) { return !config.contains(key) || config[key].is_null(); };
  if (absent("quantization")) {
    if (absent("quantization_config")) {
      throw Error(where, "says that the checkpoint holds unquantised (BF16) weights", wanted_checkpoint);
    }
    const Json& other = config["quantization_config"];
    const bool named = other.is_object() && other.contains("quant_method");
    throw Error(where,
                named ? fmt::format("says that the checkpoint holds weights quantised with {}",
                                    brief(other["quant_method"]))
                      : "has a quantization_config but no quantization block",
                wanted_checkpoint);
  }
  const Json& block = config["quantization"];
  if (!block.is_object()) return;  // a fault among the others
  FaultList faults;
  check_layout(Fields(&block, "quantization.", faults), weight_bits);
  faults.raise(where, "says that the checkpoint holds weights of another quantisation:",
               fmt::format("{}: bits 4, group_size 64, mode affine", wanted_checkpoint));
}

void check_quantization(const Fields& top, const Shape& shape) {
  // Hugging Face's tools read the copy, MLX the first: whoever edits one must edit both.
  for (const std::string_view key : {"quantization", "quantization_config"}) {
    const Fields block = top.object(key);
    const Json* value = top.find(key);
    if (value == nullptr || !value->is_object()) continue;
    check_layout(block, weight_bits);
    check_overrides(*value, block, shape);
  }
}

}  // namespace calla
