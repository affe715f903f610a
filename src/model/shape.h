// Every extent of the model, as compile-time constants. The loader checks a checkpoint against a Shape once;
// from there on no code asks which model it runs.
#pragma once
#include <string_view>

namespace calla {

/// The extents of one model of the family. A structural type: a backend is `template <Shape S>`.
struct Shape {
  int layers;  // of a checkpoint, or of a backend that runs it, perhaps fewer than the model's
  int hidden;
  int vocabulary;         // rows of the embedding and of the head; the tokenizer uses fewer
  int attention_heads;    // query heads of a full-attention layer
  int kv_heads;           // each shared by attention_heads / kv_heads query heads
  int delta_key_heads;    // Gated DeltaNet: heads of q and k
  int delta_value_heads;  // Gated DeltaNet: heads of v; value head h uses key head h * delta_key_heads /
                          // delta_value_heads
  int experts;
  int expert_hidden;
  int shared_expert_hidden;

  // The same in every shape.
  static constexpr int attention_head_dim = 256;
  static constexpr int rotary_dim = 64;  // the first dims of a head that RoPE turns, as pairs (j, j + 32)
  static constexpr int delta_head_dim = 128;
  static constexpr int convolution_taps = 4;
  static constexpr int experts_per_token = 8;
  static constexpr int attention_interval = 4;  // layer i is full attention when i % 4 == 3
  static constexpr int quantization_group = 64;

  static constexpr bool is_attention(int layer) {
    return layer % attention_interval == attention_interval - 1;
  }

  constexpr int attention_layers() const { return layers / attention_interval; }
  constexpr int delta_layers() const { return layers - attention_layers(); }
  constexpr int attention_dim() const {
    return attention_heads * attention_head_dim;
  }                                                                                 // width of q, of the gate
  constexpr int kv_dim() const { return kv_heads * attention_head_dim; }            // width of k, of v
  constexpr int delta_key_dim() const { return delta_key_heads * delta_head_dim; }  // width of q, of k
  constexpr int delta_value_dim() const { return delta_value_heads * delta_head_dim; }  // width of v, of z
  constexpr int convolution_channels() const { return 2 * delta_key_dim() + delta_value_dim(); }  // q | k | v

  constexpr bool operator==(const Shape&) const = default;
};

// Not extents, but fixed just the same, in every shape.
inline constexpr float rms_norm_epsilon = 1e-6F;
inline constexpr double rope_theta = 1e7;

/// Qwen3.6-35B-A3B.
inline constexpr Shape qwen36_35b{.layers = 40,
                                  .hidden = 2048,
                                  .vocabulary = 248320,
                                  .attention_heads = 16,
                                  .kv_heads = 2,
                                  .delta_key_heads = 16,
                                  .delta_value_heads = 32,
                                  .experts = 256,
                                  .expert_hidden = 512,
                                  .shared_expert_hidden = 512};

/// The demonstration model in models/demo: the same architecture, small.
inline constexpr Shape demo{.layers = 8,
                            .hidden = 512,
                            .vocabulary = 2560,
                            .attention_heads = 8,
                            .kv_heads = 1,
                            .delta_key_heads = 4,
                            .delta_value_heads = 8,
                            .experts = 32,
                            .expert_hidden = 64,
                            .shared_expert_hidden = 128};

/// Whether two shapes are one model, each with all of its layers or with only the first of them: a checkpoint
/// that is cut after some layers has the widths of the whole, and code made for the whole runs it.
constexpr bool same_model(Shape a, const Shape& b) {
  a.layers = b.layers;
  return a == b;
}

/// The name people know a shape by, whole or cut.
constexpr std::string_view name(const Shape& shape) {
  return same_model(shape, qwen36_35b) ? "Qwen3.6-35B-A3B"
         : same_model(shape, demo)     ? "Calla demo"
                                       : "unknown";
}

}  // namespace calla
