#include "metal/self_test.h"

#include <gtest/gtest.h>

#include "metal/test_device.h"

namespace calla::metal {
namespace {

class SelfTest : public testing::TestWithParam<Shape> {
 protected:
  const std::unique_ptr<TestDevice> device_ =
      make_test_device({.shape = GetParam(), .checked = true, .tensor_units = true});
};

TEST_P(SelfTest, FindsTheDeviceAsItShouldBe) {
  require_simd_groups(*device_);
  const TensorUnits units = examine_tensor_units(*device_, GetParam());
  EXPECT_EQ(units.used, device_->has_tensor_units());
  EXPECT_EQ(units.fault, "");
  for (const std::string& finding : device_->findings()) ADD_FAILURE() << finding;
}

INSTANTIATE_TEST_SUITE_P(Shapes, SelfTest, testing::Values(demo, qwen36_35b),
                         [](const auto& test) { return test.param == demo ? "Demo" : "Qwen36"; });

TEST(DescribeDevice, SaysWhatBecomesOfTensorUnits) {
  const std::unique_ptr<TestDevice> device = make_test_device({});
  const std::string name(device->name());
  EXPECT_EQ(describe(*device, {}), name);
  EXPECT_EQ(describe(*device, {.used = true, .fault = ""}), name + " with tensor units");
  EXPECT_EQ(describe(*device, {.used = false, .fault = "k: refused"}),
            name + " without its tensor units (k: refused; please report it, as docs/metal.md says)");
}

}  // namespace
}  // namespace calla::metal
