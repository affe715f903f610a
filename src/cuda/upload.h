// The model's weights in device memory, and the way there from a mapped checkpoint.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cuda/device.h"
#include "cuda/tiles.h"
#include "model/shape.h"
#include "model/weights.h"

namespace calla::cuda {

/// The embedding as the checkpoint has it, row-major: a token reads one row.
struct EmbeddingRows {
  const std::uint32_t* codes = nullptr;   // [rows][columns / 8], the lowest nibble first
  const std::uint16_t* scales = nullptr;  // bfloat16 [rows][columns / 64]
  const std::uint16_t* biases = nullptr;  // bfloat16 [rows][columns / 64]
  int rows = 0;
  int columns = 0;
};

/// Pointers into DeviceWeights::memory. Those of the mixer that a layer has not are null.
struct DeviceLayer {
  const float* input_norm = nullptr;           // [hidden]
  const float* post_attention_norm = nullptr;  // [hidden]
  Tiles in;   // DeltaNet: rows q | k | v | z | a | b. Attention: q (per head 256 query, 256 gate) | k | v
  Tiles out;  // back to the residual stream
  // DeltaNet
  const float* convolution = nullptr;  // [convolution_channels][4], oldest tap first
  const float* a_log = nullptr;        // [delta_value_heads]
  const float* dt_bias = nullptr;      // [delta_value_heads]
  const float* norm = nullptr;         // [128]
  // Attention
  const float* q_norm = nullptr;  // [256]
  const float* k_norm = nullptr;  // [256]
  // Experts; gate and up as tiles.h has them in one matrix
  ByteRows router;     // [experts + 1, hidden]: the last row is the gate of the shared expert
  Tiles router_tiles;  // the same for decode: of each 16 rows the low halves of the codes, then the high
  TileStack expert_gate_up;  // [2 * expert_hidden, hidden] each
  TileStack expert_down;     // [hidden, expert_hidden] each
  Tiles shared_gate_up;      // [2 * shared_expert_hidden, hidden]
  Tiles shared_down;         // [hidden, shared_expert_hidden]
};

struct DeviceWeights {
  EmbeddingRows embedding;
  std::vector<DeviceLayer> layers;
  const float* norm = nullptr;    // [hidden]
  Tiles head;                     // [vocabulary, hidden]
  DeviceArray<std::byte> memory;  // all of the above
};

/// The bytes of DeviceWeights::memory for a shape: all weights but the MTP layer's.
std::size_t device_bytes(const Shape& shape);

/// Called with bytes done and bytes in all, on the thread that called upload_weights.
using UploadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Allocates device memory, copies and packs; returns when everything is there. Of the shape, the layers that
/// `weights` has. Reads the checkpoint with several threads, a piece at a time, and gives each piece back as
/// soon as it is on its way. Throws Error when the device has no room or the disk fails.
DeviceWeights upload_weights(const Weights& weights, const Shape& shape, const UploadProgress& progress);

}  // namespace calla::cuda
