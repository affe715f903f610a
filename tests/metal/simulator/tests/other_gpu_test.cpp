// The self-test on GPUs that are not what they should be: what is seen, said and done.
#include <map>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "base/error.h"
#include "metal/backend.h"
#include "metal/self_test.h"
#include "metal/simulator/simulated_device.h"
#include "support/demo.h"
#include "support/support.h"

namespace calla::metal {
namespace {

/// Kernels, and what runs in their place.
using Kernels = std::map<std::string, std::string, std::less<>>;

/// A device with tensor units that runs other kernels than it is asked for.
class OtherGpu final : public Device {
 public:
  OtherGpu(bool checked, Kernels instead)
      : device_(simulation::make_device({.checked = checked, .tensor_units = true})),
        instead_(std::move(instead)) {}

  std::string_view name() const override { return "another GPU"; }
  bool has_tensor_units() const override { return device_->has_tensor_units(); }
  std::uint64_t max_buffer() const override { return device_->max_buffer(); }
  std::unique_ptr<Buffer> allocate(std::size_t bytes, Hazards hazards) override {
    return device_->allocate(bytes, hazards);
  }
  std::unique_ptr<Buffer> map(std::span<const std::byte> pages) override { return device_->map(pages); }
  std::size_t map_alignment() const override { return device_->map_alignment(); }
  std::unique_ptr<Pipeline> pipeline(std::string_view kernel, std::uint32_t threads) override {
    const auto other = instead_.find(kernel);
    return device_->pipeline(other == instead_.end() ? kernel : std::string_view(other->second), threads);
  }
  std::unique_ptr<Pass> begin() override { return device_->begin(); }
  void expect_work() override { device_->expect_work(); }

 private:
  std::unique_ptr<Device> device_;
  Kernels instead_;
};

std::string refusal(const std::string& kernel, const std::string& other) {
  OtherGpu gpu(true, {{kernel, other}});
  return test::message_of([&] { require_simd_groups(gpu); });
}

TEST(OtherGpu, IsRefusedForItsSimdGroups) {
  EXPECT_EQ(
      refusal("simd_places", "broken_simd_places"),
      "another GPU: has SIMD-groups that are not 32 neighbouring threads: result 1 is 32 and must be 1; "
      "please report it, as docs/metal.md says");
}

TEST(OtherGpu, IsRefusedForTheLayoutOfItsMatrices) {
  for (const std::string what : {"loads", "stores", "products"}) {
    const std::string text = refusal("matrix_elements", "broken_elements_" + what);
    EXPECT_NE(text.find("another GPU: lays matrices out over a SIMD-group as no known GPU does: result "),
              std::string::npos)
        << text;
  }
}

TEST(OtherGpu, IsRefusedWhereTheTestCannotBeCompiled) { EXPECT_NE(refusal("matrix_elements", "none"), ""); }

std::string tensor_fault(const std::string& kernel, const std::string& other) {
  OtherGpu gpu(true, {{kernel, other}});
  const TensorUnits units = examine_tensor_units(gpu, demo);
  EXPECT_NE(units.used, !units.fault.empty());
  return units.fault;
}

TEST(OtherGpu, HasNoUseForTensorUnitsThatMultiplyWrongly) {
  // It adds to what is there, which is -1.
  EXPECT_EQ(tensor_fault("gemm_tensor", "gemm_tensor_add").find("gemm_tensor: result 0 is "), 0U);
  EXPECT_EQ(tensor_fault("experts_down_rows_tensor", "broken_down_rows")
                .find("experts_down_rows_tensor: result 0 is "),
            0U);
}

TEST(OtherGpu, MayMultiplyInAnyOrder) {
  EXPECT_EQ(tensor_fault("gemm_tensor", "gemm_64"), "");
  EXPECT_EQ(tensor_fault("experts_down_rows_tensor", "experts_down_rows_32"), "");
}

TEST(OtherGpu, HasNoUseForTensorUnitsWithoutAKernel) {
  for (const std::string kernel :
       {"gemm_tensor_project", "gemm_tensor", "gemm_tensor_add", "shared_gate_up_tensor",
        "experts_gate_up_tensor", "experts_down_rows_tensor"}) {
    EXPECT_EQ(tensor_fault(kernel, "none"), "none: there is no such kernel") << kernel;
  }
}

/// The logits after a prompt and a token.
std::vector<float> logits(Backend& backend) {
  std::vector<float> result;
  backend.reset(0);
  backend.prefill(0, std::vector<Token>{5, 1, 4, 2, 3, 9, 17, 100, 250, 42}, false);
  backend.score(0, std::vector<Token>{17},
                [&](std::size_t, std::span<const float> row) { result.assign(row.begin(), row.end()); });
  return result;
}

TEST(OtherGpu, ComputesWithoutItsTensorUnits) {
  Shape shape = demo;
  Weights weights = test::demo_weights();
  shape.layers = 1;
  weights.layers.resize(1);
  const auto make = [&](std::unique_ptr<Device> device) {
    return make_backend(std::move(device), shape, weights, 1, 256, {}, 32);
  };
  const auto base = make(simulation::make_device({.checked = false}));
  const auto right = make(std::make_unique<OtherGpu>(false, Kernels{}));
  const auto wrong = make(std::make_unique<OtherGpu>(false, Kernels{{"gemm_tensor", "gemm_tensor_add"}}));
  EXPECT_EQ(right->device(), "another GPU with tensor units");
  EXPECT_EQ(wrong->device().find("another GPU without its tensor units (gemm_tensor: result 0 is "), 0U)
      << wrong->device();
  const std::vector<float> expected = logits(*base);
  EXPECT_NE(logits(*right), expected) << "operands are rounded to bfloat16";
  EXPECT_EQ(logits(*wrong), expected);
}

}  // namespace
}  // namespace calla::metal
