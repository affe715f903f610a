// The weights as the kernels read them: in the checkpoint's own layout, in the mapped files where that is
// possible.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "metal/device.h"
#include "model/shape.h"
#include "model/weights.h"

namespace calla::metal {

/// A quantised matrix, or a stack of them, row-major as in the checkpoint (model/affine.h). Words lie on 16
/// bytes.
struct MatrixView {
  View words;
  View scales;
  View biases;
  int rows = 0;
};

struct LayerViews {
  View input_norm;  // float [hidden]
  std::array<MatrixView, 4>
      project;  // DeltaNet: qkv, z, b, a. Attention: q with gate, k, v, and v again with no rows
  MatrixView out;
  // DeltaNet, float:
  View convolution;  // [channels][4]
  View a_log;        // [delta_value_heads]
  View dt_bias;      // [delta_value_heads]
  View norm;         // [128]
  // Attention, float:
  View q_norm;  // [256]
  View k_norm;  // [256]

  View post_attention_norm;  // float [hidden]
  MatrixView router;         // 8 bits
  MatrixView shared_gate;    // 8 bits, one row
  MatrixView gate;           // [experts * expert_hidden, hidden]
  MatrixView up;
  MatrixView down;  // [experts * hidden, expert_hidden]
  MatrixView shared_expert_gate;
  MatrixView shared_expert_up;
  MatrixView shared_expert_down;
};

struct DeviceWeights {
  MatrixView embedding;
  MatrixView head;
  View norm;  // float [hidden]
  std::vector<LayerViews> layers;

  std::uint64_t mapped = 0;  // bytes that are read where the files are mapped
  std::uint64_t copied = 0;  // bytes that have memory of their own
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::shared_ptr<const void> owner;  // of the mapped files
};

/// Called with bytes done and bytes in all.
using LoadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Maps what is aligned as the kernels need it, and copies the rest, dropping the file's pages as it goes.
/// Throws Error when memory is refused or the disk fails.
DeviceWeights place_weights(Device& device, const Weights& weights, const LoadProgress& progress);

}  // namespace calla::metal
