// The macros that kernels/shape.h reads.
#pragma once
#include <array>

#include "model/shape.h"

namespace calla::metal {

struct ShapeMacro {
  const char* name;
  int value;
};

constexpr std::array<ShapeMacro, 9> shape_macros(const Shape& shape) {
  return {{
      {"CALLA_HIDDEN", shape.hidden},
      {"CALLA_VOCABULARY", shape.vocabulary},
      {"CALLA_ATTENTION_HEADS", shape.attention_heads},
      {"CALLA_KV_HEADS", shape.kv_heads},
      {"CALLA_DELTA_KEY_HEADS", shape.delta_key_heads},
      {"CALLA_DELTA_VALUE_HEADS", shape.delta_value_heads},
      {"CALLA_EXPERTS", shape.experts},
      {"CALLA_EXPERT_HIDDEN", shape.expert_hidden},
      {"CALLA_SHARED_EXPERT_HIDDEN", shape.shared_expert_hidden},
  }};
}

}  // namespace calla::metal
