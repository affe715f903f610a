// The extents of the model that the kernels are compiled for; the device sets the macros (model/shape.h).
#pragma once

namespace calla_kernels {

enum : unsigned {
  hidden = CALLA_HIDDEN,
  vocabulary = CALLA_VOCABULARY,
  attention_heads = CALLA_ATTENTION_HEADS,
  kv_heads = CALLA_KV_HEADS,
  delta_key_heads = CALLA_DELTA_KEY_HEADS,
  delta_value_heads = CALLA_DELTA_VALUE_HEADS,
  experts = CALLA_EXPERTS,
  expert_hidden = CALLA_EXPERT_HIDDEN,
  shared_hidden = CALLA_SHARED_EXPERT_HIDDEN,

  head_dim = 256,  // of attention
  rotary_dim = 64,
  delta_dim = 128,  // of a DeltaNet head
  taps = 4,
  experts_per_token = 8,
  group = 64,  // columns that share a scale and a bias

  attention_dim = attention_heads * head_dim,
  kv_dim = kv_heads * head_dim,
  heads_per_kv = attention_heads / kv_heads,
  delta_key_dim = delta_key_heads * delta_dim,
  delta_value_dim = delta_value_heads * delta_dim,
  channels = 2 * delta_key_dim + delta_value_dim,  // q | k | v
  // Rows of what a layer's first product gives.
  delta_projected = channels + delta_value_dim + 2 * delta_value_heads,  // q | k | v | z | b | a
  attention_projected = 2 * attention_dim + 2 * kv_dim,                  // (q 256 | gate 256) a head | k | v
};

}  // namespace calla_kernels
