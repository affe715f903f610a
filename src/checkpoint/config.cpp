#include "checkpoint/config.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/fields.h"
#include "checkpoint/quantization.h"

namespace calla {
namespace {
constexpr int longest_context = 1 << 20;
// As config.json spells it; the nearest double of the float32 would print with 16 digits.
constexpr double norm_epsilon = 1e-6;
static_assert(static_cast<float>(norm_epsilon) == rms_norm_epsilon);

/// The fields of text_config that tell one shape from another.
std::array<std::pair<std::string_view, int>, 9> extents(const Shape& shape) {
  return {{{"hidden_size", shape.hidden},
           {"vocab_size", shape.vocabulary},
           {"num_attention_heads", shape.attention_heads},
           {"num_key_value_heads", shape.kv_heads},
           {"linear_num_key_heads", shape.delta_key_heads},
           {"linear_num_value_heads", shape.delta_value_heads},
           {"num_experts", shape.experts},
           {"moe_intermediate_size", shape.expert_hidden},
           {"shared_expert_intermediate_size", shape.shared_expert_hidden}}};
}

/// The shape that a configuration comes nearest to: its extents are the ones to hold it against.
Shape nearest_shape(const Fields& text) {
  const auto agreeing = [&](const Shape& shape) {
    const auto fields = extents(shape);
    return std::count_if(fields.begin(), fields.end(), [&](const auto& field) {
      const Json* value = text.find(field.first);
      return value != nullptr && *value == field.second;
    });
  };
  return agreeing(demo) > agreeing(qwen36_35b) ? demo : qwen36_35b;
}

/// A checkpoint may hold only the first layers of the model.
int layer_count(const Fields& text, const Shape& shape) {
  if (text.find("num_hidden_layers") == nullptr)
    text.fault("num_hidden_layers", fmt::format("{}", shape.layers));
  return text.integer("num_hidden_layers", 1, shape.layers).value_or(shape.layers);
}

/// Refuses another model in plain words, before its fields are held against this one's.
void check_model_type(const Json& config, std::string_view where) {
  const auto type = config.find("model_type");
  if (type != config.end() && type->is_string() && *type != "qwen3_5_moe") {
    throw Error(where, fmt::format("describes a {} model", brief(*type)), "Calla runs Qwen3.6-35B-A3B only");
  }
}

void check_layer_types(const Fields& text, const Shape& shape) {
  const Json* types = text.find("layer_types");
  text.expect("full_attention_interval", Shape::attention_interval,
              types == nullptr ? Presence::required : Presence::optional);
  if (types == nullptr) return;
  if (!types->is_array() || types->size() != static_cast<std::size_t>(shape.layers)) {
    text.fault("layer_types", fmt::format("a list of {}", shape.layers));
    return;
  }
  for (int layer = 0; layer < shape.layers; ++layer) {
    const char* expected = Shape::is_attention(layer) ? "full_attention" : "linear_attention";
    if ((*types)[static_cast<std::size_t>(layer)] != expected) {
      text.fault("layer_types", fmt::format("{} at layer {}", expected, layer));
      return;
    }
  }
}

void check_rope(const Fields& text) {
  constexpr auto rotated_part = static_cast<double>(Shape::rotary_dim) / Shape::attention_head_dim;
  const Fields rope = text.object("rope_parameters");
  rope.expect("rope_type", "default", Presence::optional);
  rope.expect("type", "default", Presence::optional);
  if (text.find("rope_scaling") != nullptr) text.fault("rope_scaling", "none");
  // Both stand in either place, by the age of the writer.
  const auto expect_in_either = [&](std::string_view key, double expected) {
    const bool elsewhere = text.find(key) != nullptr;
    rope.expect(key, expected, elsewhere ? Presence::optional : Presence::required);
    text.expect(key, expected, Presence::optional);
  };
  expect_in_either("rope_theta", rope_theta);
  expect_in_either("partial_rotary_factor", rotated_part);
}

void check_text(const Fields& text, const Shape& shape) {
  for (const auto& [key, expected] : extents(shape)) text.expect(key, expected);
  text.expect("model_type", "qwen3_5_moe_text", Presence::optional);
  text.expect("head_dim", Shape::attention_head_dim);
  text.expect("linear_key_head_dim", Shape::delta_head_dim);
  text.expect("linear_value_head_dim", Shape::delta_head_dim);
  text.expect("linear_conv_kernel_dim", Shape::convolution_taps);
  text.expect("num_experts_per_tok", Shape::experts_per_token);
  text.expect("norm_topk_prob", true, Presence::optional);
  text.expect("hidden_act", "silu");
  text.expect("attention_bias", false, Presence::optional);
  text.expect("attn_output_gate", true);
  text.expect("tie_word_embeddings", false);
  text.expect("rms_norm_eps", norm_epsilon);
  text.expect("mtp_use_dedicated_embeddings", false, Presence::optional);
  static_cast<void>(text.integer("mtp_num_hidden_layers", 0, 1));
  check_layer_types(text, shape);
  check_rope(text);
}
}  // namespace

ModelConfig parse_config(const Json& config, std::string_view where) {
  if (!config.is_object()) throw Error(where, "is no JSON object", wanted_checkpoint);
  check_model_type(config, where);
  check_quantization_kind(config, where);

  FaultList faults;
  const Fields top(&config, "", faults);
  top.expect("model_type", "qwen3_5_moe");
  top.expect("tie_word_embeddings", false);
  if (top.find("text_config") == nullptr) top.fault("text_config", "an object");
  const Fields text = top.object("text_config");
  ModelConfig model;
  model.shape = nearest_shape(text);
  if (top.find("text_config") != nullptr) {
    model.shape.layers = layer_count(text, model.shape);
    check_text(text, model.shape);
  }
  check_quantization(top, model.shape);

  if (text.find("max_position_embeddings") == nullptr)
    text.fault("max_position_embeddings", "a positive number");
  model.context = text.integer("max_position_embeddings", 1, longest_context).value_or(0);
  const Fields& with_end = top.find("eos_token_id") != nullptr ? top : text;
  model.end_tokens = with_end.tokens("eos_token_id", model.shape.vocabulary);
  if (with_end.find("eos_token_id") == nullptr)
    with_end.fault("eos_token_id", "a token id or a list of them");

  faults.raise(where, fmt::format("does not describe {}:", name(model.shape)), wanted_checkpoint);
  return model;
}

ModelConfig read_config(const std::filesystem::path& directory) {
  check_model_directory(directory);
  const std::filesystem::path path = directory / "config.json";
  return parse_config(read_json_file(path), path.string());
}

}  // namespace calla
