// A GPU of Apple's in software: runs the kernels, compiled as C++, with their threads in a random order, and
// watches what they do.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "metal/device.h"
#include "model/shape.h"

namespace calla::metal::simulation {

struct Options {
  Shape shape = demo;         // demo, or qwen36_35b (checked only)
  bool checked = true;        // watch every access; slower by a factor of three to five
  std::uint64_t seed = 1;     // of the order of threads, threadgroups and dispatches
  bool tensor_units = false;  // what Device::has_tensor_units says
  // Arithmetic as inexact as Metal's may be, with the seed of its errors; else C++'s. Unchecked, and the demo
  // model's shape only.
  std::optional<std::uint64_t> loose{};
};

class SimulatedDevice : public Device {
 public:
  /// What was wrong so far, a line each; empty where nothing was. Of one kind in one place only the first is
  /// kept.
  virtual const std::vector<std::string>& findings() const = 0;
  /// Barriers so far behind which no dispatch did anything that depends on one before it; of a checked
  /// device. No fault, but time lost; and right where kernels had nothing to do.
  virtual const std::vector<std::string>& needless_barriers() const = 0;
};

std::unique_ptr<SimulatedDevice> make_device(const Options& options);

}  // namespace calla::metal::simulation
