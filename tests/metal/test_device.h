// What the tests of the kernels run on: the GPU of a Mac where Calla is built for it, elsewhere the simulated
// one.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "metal/device.h"

#ifdef CALLA_WITH_METAL

#include "metal/device_apple.h"

namespace calla::metal {

/// `checked`, `seed` and `loose` are for the simulated device alone.
struct TestDeviceOptions {
  Shape shape = demo;
  bool checked = true;
  std::uint64_t seed = 1;
  bool tensor_units = false;  // whether they may be used, where there are some
  std::optional<std::uint64_t> loose{};
};

/// Apple's device under the simulated one's name, with nobody to watch it.
class TestDevice final : public Device {
 public:
  explicit TestDevice(const TestDeviceOptions& options)
      : device_(make_apple_device(options.shape)),
        tensor_units_(options.tensor_units && device_->has_tensor_units()) {}

  const std::vector<std::string>& findings() const { return none_; }
  const std::vector<std::string>& needless_barriers() const { return none_; }

  std::string_view name() const override { return device_->name(); }
  bool has_tensor_units() const override { return tensor_units_; }
  std::uint64_t max_buffer() const override { return device_->max_buffer(); }
  std::unique_ptr<Buffer> allocate(std::size_t bytes, Hazards hazards) override {
    return device_->allocate(bytes, hazards);
  }
  std::unique_ptr<Buffer> map(std::span<const std::byte> pages) override { return device_->map(pages); }
  std::size_t map_alignment() const override { return device_->map_alignment(); }
  std::unique_ptr<Pipeline> pipeline(std::string_view kernel, std::uint32_t threads) override {
    return device_->pipeline(kernel, threads);
  }
  std::unique_ptr<Pass> begin() override { return device_->begin(); }
  void expect_work() override { device_->expect_work(); }

 private:
  std::unique_ptr<Device> device_;
  bool tensor_units_;
  std::vector<std::string> none_;
};

inline std::unique_ptr<TestDevice> make_test_device(const TestDeviceOptions& options) {
  return std::make_unique<TestDevice>(options);
}

/// Whether kernels for tensor units can be run.
inline bool runs_tensor_kernels() { return make_apple_device(demo)->has_tensor_units(); }
/// Whether arithmetic can be made less exact than it is.
inline constexpr bool has_loose_arithmetic = false;

}  // namespace calla::metal

#else

#include "metal/simulator/simulated_device.h"

namespace calla::metal {

using TestDeviceOptions = simulation::Options;
using TestDevice = simulation::SimulatedDevice;

inline std::unique_ptr<TestDevice> make_test_device(const TestDeviceOptions& options) {
  return simulation::make_device(options);
}

inline bool runs_tensor_kernels() { return true; }
inline constexpr bool has_loose_arithmetic = true;

}  // namespace calla::metal

#endif

#define CALLA_REQUIRE_TENSOR_UNITS() \
  if (!::calla::metal::runs_tensor_kernels()) GTEST_SKIP() << "this GPU has no tensor units"
#define CALLA_REQUIRE_LOOSE_ARITHMETIC() \
  if (!::calla::metal::has_loose_arithmetic) GTEST_SKIP() << "a GPU's arithmetic is what it is"
