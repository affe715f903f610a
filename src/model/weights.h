// Every tensor of the model, typed. Quantised matrices are views of the checkpoint's bytes; the small vectors
// (norm gains, convolution taps, decay parameters) are float32 copies, whatever form the file has.
//
// Shapes are [output rows, input columns], in the names of model/shape.h.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "model/affine.h"
#include "model/shape.h"

namespace calla {

/// Gated full attention.
struct AttentionWeights {
  AffineMatrix q;  // [2 * attention_dim, hidden]: per head 256 rows of query, then 256 rows of gate
  AffineMatrix k;  // [kv_dim, hidden]
  AffineMatrix v;  // [kv_dim, hidden]
  AffineMatrix o;  // [hidden, attention_dim]
  std::vector<float> q_norm;  // [256], the gain itself
  std::vector<float> k_norm;  // [256]
};

/// Gated DeltaNet.
struct DeltaNetWeights {
  AffineMatrix qkv;                // [convolution_channels, hidden], rows q | k | v
  AffineMatrix z;                  // [delta_value_dim, hidden], the output gate
  AffineMatrix a;                  // [delta_value_heads, hidden], the decay
  AffineMatrix b;                  // [delta_value_heads, hidden], the write strength
  AffineMatrix out;                // [hidden, delta_value_dim]
  std::vector<float> convolution;  // [convolution_channels, 4], oldest tap first
  std::vector<float> a_log;        // [delta_value_heads]
  std::vector<float> dt_bias;      // [delta_value_heads]
  std::vector<float> norm;         // [128], the gain of the gated norm
};

/// SwiGLU: down(silu(gate x) * (up x)).
struct SharedExpertWeights {
  AffineMatrix gate;  // [shared_expert_hidden, hidden]
  AffineMatrix up;    // [shared_expert_hidden, hidden]
  AffineMatrix down;  // [hidden, shared_expert_hidden]
};

struct MoeWeights {
  AffineMatrix router;  // [experts, hidden], 8 bits
  ExpertStack gate;     // experts of [expert_hidden, hidden]
  ExpertStack up;       // experts of [expert_hidden, hidden]
  ExpertStack down;     // experts of [hidden, expert_hidden]
  SharedExpertWeights shared;
  AffineMatrix shared_gate;  // [1, hidden], 8 bits
};

struct LayerWeights {
  std::vector<float> input_norm;  // [hidden]
  std::variant<DeltaNetWeights, AttentionWeights> mixer;
  std::vector<float> post_attention_norm;  // [hidden]
  MoeWeights moe;
};

/// The multi-token-prediction layer: predicts token t + 2 from the final hidden state at t and the token at t
/// + 1.
struct MtpWeights {
  std::vector<float> embedding_norm;  // [hidden]
  std::vector<float> hidden_norm;     // [hidden]
  AffineMatrix fc;                    // [hidden, 2 * hidden], columns: embedding | hidden
  LayerWeights layer;                 // full attention
  std::vector<float> norm;            // [hidden]
};

/// The pages behind views of mapped files. For a backend that copies the weights: memory then need not hold
/// them twice.
class WeightPages {
 public:
  virtual ~WeightPages() = default;
  /// All bytes of the mapping, a file's, that the bytes are of.
  virtual std::span<const std::byte> mapping(std::span<const std::byte> bytes) const = 0;
  /// Asks the system to read the bytes soon.
  virtual void read_ahead(std::span<const std::byte> bytes) const = 0;
  /// Brings the bytes into memory. Throws Error when the disk fails.
  virtual void load(std::span<const std::byte> bytes) const = 0;
  /// Takes the bytes out of this process's memory; when read again they come from the file again.
  virtual void drop(std::span<const std::byte> bytes) const = 0;
};

struct Weights {
  AffineMatrix embedding;  // [vocabulary, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> norm;  // [hidden]
  AffineMatrix head;        // [vocabulary, hidden]
  std::optional<MtpWeights> mtp;

  std::size_t bytes = 0;                     // of all tensors above, as they are stored
  std::shared_ptr<const void> owner;         // keeps the bytes behind the views alive
  std::shared_ptr<const WeightPages> pages;  // null where the bytes are in memory anyway
};

}  // namespace calla
