// The model's weights as the kernels stream them: packed once, in the order in which a token reads them.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_team.h"
#include "cpu/memory.h"
#include "cpu/panels.h"
#include "model/weights.h"

namespace calla::cpu {

/// SwiGLU's first two matrices in one: a panel of gate rows, then the panel of the same up rows, and so on.
struct ExpertPanels {
  Panels gate_up;  // [2 * hidden of the expert, hidden]
  Panels down;     // [hidden, hidden of the expert]
};

struct PackedLayer {
  std::vector<float> input_norm;
  std::vector<float> post_attention_norm;
  Panels in;   // DeltaNet: rows q k v | z | a | b. Attention: rows q and gate | k | v
  Panels out;  // back to the residual stream
  // DeltaNet
  std::vector<float> taps;        // [4][convolution_channels], oldest first
  std::vector<float> decay_rate;  // [delta_value_heads], exp(A_log)
  std::vector<float> dt_bias;     // [delta_value_heads]
  std::vector<float> norm;        // [128]
  // Attention
  std::vector<float> q_norm;  // [256]
  std::vector<float> k_norm;  // [256]
  // Experts
  Panels router;  // 8 bits: a row an expert, then the gate of the shared expert
  ExpertPanels shared;
  std::vector<ExpertPanels> experts;
};

struct PackedWeights {
  AffineMatrix embedding;  // as the checkpoint has it: a token reads one row
  std::vector<PackedLayer> layers;
  std::vector<float> norm;
  Panels head;
  Region arena;                       // all panels
  std::shared_ptr<const void> owner;  // of the embedding
};

/// The bytes of the packed weights of a shape, the embedding included.
std::uint64_t weight_bytes(const Shape& shape);

/// Called with bytes done and bytes in all.
using PackProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Packs with all threads of the team, a matrix after the other, and gives each one's source back as soon as
/// it is done, so that memory holds the packed weights and one tensor.
PackedWeights pack(Weights weights, const Shape& shape, ThreadTeam& team, const PackProgress& progress);

}  // namespace calla::cpu
