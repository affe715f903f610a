// A device that computes nothing and writes down what it is asked for: how much work a step is, known without
// a GPU.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "metal/device.h"

namespace calla::metal {

struct RecordedDispatch {
  std::string kernel;
  Grid grid;
  std::uint32_t threads = 0;  // a threadgroup
  int level = 0;              // barriers before it in its pass

  std::uint64_t threadgroups() const { return std::uint64_t{grid.x} * grid.y * grid.z; }
};

/// One pass that was committed.
struct RecordedPass {
  std::vector<RecordedDispatch> dispatches;
  int levels = 0;
};

class RecordingDevice final : public Device {
 public:
  const std::vector<RecordedPass>& passes() const { return *passes_; }
  void forget() { passes_->clear(); }

  std::string_view name() const override { return "no device"; }
  bool has_tensor_units() const override { return false; }
  std::uint64_t max_buffer() const override;
  /// Memory that takes no room until it is written.
  std::unique_ptr<Buffer> allocate(std::size_t bytes, Hazards hazards) override;
  std::unique_ptr<Buffer> map(std::span<const std::byte> pages) override;
  std::size_t map_alignment() const override { return 4096; }
  std::unique_ptr<Pipeline> pipeline(std::string_view kernel, std::uint32_t threads) override;
  std::unique_ptr<Pass> begin() override;
  void expect_work() override {}

 private:
  std::shared_ptr<std::vector<RecordedPass>> passes_ = std::make_shared<std::vector<RecordedPass>>();
};

}  // namespace calla::metal
