#include "metal/decode_plan.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "metal/decoder.h"
#include "metal/kernels/decode_grids.h"
#include "metal/recorder.h"
#include "metal/sample_slots.h"
#include "metal/sequences.h"
#include "metal/turns.h"

namespace calla::metal {
namespace {

using namespace calla_kernels;

constexpr double streaming_bytes = 256 * 1024;
constexpr double streaming_level_seconds = 4e-6;
constexpr double tiny_level_seconds = 2.5e-6;

/// Weights that are nowhere.
MatrixView matrix_of(int rows) {
  MatrixView matrix;
  matrix.rows = rows;
  return matrix;
}

DeviceWeights imagined_weights(const Shape& s) {
  DeviceWeights weights;
  weights.layers.resize(static_cast<std::size_t>(s.layers));
  for (int i = 0; i < s.layers; ++i) {
    LayerViews& layer = weights.layers[static_cast<std::size_t>(i)];
    if (Shape::is_attention(i)) {
      layer.project = {matrix_of(2 * s.attention_dim()), matrix_of(s.kv_dim()), matrix_of(s.kv_dim()),
                       matrix_of(0)};
    } else {
      layer.project = {matrix_of(s.convolution_channels()), matrix_of(s.delta_value_dim()),
                       matrix_of(s.delta_value_heads), matrix_of(s.delta_value_heads)};
    }
  }
  return weights;
}

/// Bytes of a matrix as the checkpoint stores it: codes, and a scale and a bias for 64 columns.
double matrix_bytes(double rows, int columns, int bits) { return rows * columns * (bits / 8.0 + 4.0 / 64.0); }

/// Bytes that a dispatch streams, by its kernel's name without the number of rows.
double dispatch_bytes(const Shape& s, const RecordedDispatch& dispatch, std::string_view kernel,
                      int context) {
  constexpr int bits = 4;
  const double float_bytes = sizeof(float);
  if (kernel == "embed") return matrix_bytes(1, s.hidden, bits);
  if (kernel == "project") return matrix_bytes(double{project_rows} * dispatch.grid.x, s.hidden, bits);
  if (kernel == "delta_step") {
    const double state = double{1} * s.delta_value_heads * Shape::delta_head_dim * Shape::delta_head_dim;
    const double window = double{Shape::convolution_taps} * s.convolution_channels();
    return float_bytes * (2 * state + window);
  }
  if (kernel == "delta_out") return matrix_bytes(s.hidden, s.delta_value_dim(), bits);
  if (kernel == "attention_step" || kernel == "attention_split") return 2.0 * 2.0 * s.kv_dim() * context;
  if (kernel == "attention_out") return matrix_bytes(s.hidden, s.attention_dim(), bits);
  if (kernel == "router") return matrix_bytes(s.experts + 1, s.hidden, 8);
  if (kernel == "shared_up") return matrix_bytes(2.0 * s.shared_expert_hidden, s.hidden, bits);
  if (kernel == "experts_up")
    return Shape::experts_per_token * matrix_bytes(2.0 * s.expert_hidden, s.hidden, bits);
  if (kernel == "experts_down") {
    return Shape::experts_per_token * matrix_bytes(s.hidden, s.expert_hidden, bits) +
           matrix_bytes(s.hidden, s.shared_expert_hidden, bits);
  }
  if (kernel == "head") return matrix_bytes(s.vocabulary, s.hidden, bits);
  return 0;
}

std::string_view without_rows(std::string_view kernel) {
  const std::size_t end = kernel.rfind("_1");
  return end != std::string_view::npos && end + 2 == kernel.size() ? kernel.substr(0, end) : kernel;
}

}  // namespace

DecodePlan plan_decode(const Shape& shape, int context) {
  RecordingDevice device;
  const DeviceWeights weights = imagined_weights(shape);
  const std::unique_ptr<Buffer> nothing = device.allocate(0, Hazards::untracked);
  const Sequences sequences(device, shape, 1, context);
  const Decoder decoder(device, shape, weights, sequences, *nothing, context);
  SampleSlots sampling(device, 1, shape.vocabulary);
  sampling.set(0, {.temperature = 0}, {});

  const std::unique_ptr<Pass> pass = device.begin();
  const DecodeRow row{0, context - 1};
  constexpr int slot = 0;
  decoder.encode(*pass, std::span(&row, 1));
  pass->barrier();
  sampling.encode(*pass, std::span(&slot, 1), 1, sequences.logits(), sequences.peaks(),
                  sequences.slot_states());
  pass->commit();

  const RecordedPass& recorded = device.passes().back();
  DecodePlan plan;
  plan.context = context;
  plan.levels = recorded.levels;
  plan.dispatches = static_cast<int>(recorded.dispatches.size());
  std::map<int, double> level_bytes;
  for (const RecordedDispatch& dispatch : recorded.dispatches) {
    const std::string_view name = without_rows(dispatch.kernel);
    const double bytes = dispatch_bytes(shape, dispatch, name, context);
    auto kernel = std::find_if(plan.kernels.begin(), plan.kernels.end(),
                               [&](const auto& k) { return k.kernel == name; });
    if (kernel == plan.kernels.end()) kernel = plan.kernels.insert(kernel, {std::string(name)});
    ++kernel->dispatches;
    kernel->threadgroups += dispatch.threadgroups();
    kernel->bytes += bytes;
    plan.threadgroups += dispatch.threadgroups();
    plan.bytes += bytes;
    level_bytes[dispatch.level] += bytes;
  }
  for (const auto& [level, bytes] : level_bytes) plan.streaming_levels += bytes > streaming_bytes ? 1 : 0;
  return plan;
}

std::span<const Chip> chips() {
  // Nominal bandwidth times the share that published measurements reach on the chip or its nearest relative.
  static constexpr std::array list{
      Chip{"M1", 58e9},      Chip{"M1 Pro", 170e9}, Chip{"M1 Max", 320e9}, Chip{"M1 Ultra", 600e9},
      Chip{"M2 Max", 332e9}, Chip{"M3 Pro", 130e9}, Chip{"M3 Max", 348e9}, Chip{"M3 Ultra", 655e9},
      Chip{"M4", 108e9},     Chip{"M4 Pro", 246e9}, Chip{"M4 Max", 491e9}, Chip{"M5", 138e9},
      Chip{"M5 Pro", 290e9}, Chip{"M5 Max", 588e9},
  };
  return list;
}

double predicted_seconds(const DecodePlan& plan, const Chip& chip) {
  return plan.bytes / chip.bandwidth + plan.streaming_levels * streaming_level_seconds +
         (plan.levels - plan.streaming_levels) * tiny_level_seconds;
}

}  // namespace calla::metal
