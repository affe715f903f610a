// Apple's device by itself. Built on Macs only; the kernels' own tests run on it too.
#include <cstdio>
#include <cstring>
#include <regex>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "metal/decoder.h"
#include "metal/device_apple.h"
#include "metal/kernel_sources.h"
#include "metal/prefill.h"
#include "metal/sample_slots.h"
#include "support/support.h"

namespace calla::metal {
namespace {

/// Where there is no GPU that Calla can use, in a virtual machine for instance, nothing is to be tested.
class GpuIsThere : public testing::Environment {
 public:
  void SetUp() override {
    const AppleGpu gpu = find_apple_device();
    if (!gpu.reason.empty()) GTEST_SKIP() << gpu.reason;
  }
};
// NOLINTNEXTLINE(cert-err58-cpp)
const testing::Environment* const environment = testing::AddGlobalTestEnvironment(new GpuIsThere);

TEST(AppleDevice, SaysWhatItIs) {
  const std::unique_ptr<Device> device = make_apple_device(demo);
  EXPECT_FALSE(device->name().empty());
  EXPECT_GT(device->max_buffer(), 0U);
  const AppleGpu gpu = find_apple_device();
  EXPECT_EQ(device->name(), gpu.name);
  EXPECT_GT(gpu.working_set, 0U);
  fmt::print("{} ({}), {} tensor units, buffers up to {} bytes, {} in all\n", gpu.name, gpu.architecture,
             device->has_tensor_units() ? "with" : "without", device->max_buffer(), gpu.working_set);
}

TEST(AppleDevice, CompilesEverySourceForBothModels) {
  for (const Shape& shape : {demo, qwen36_35b}) {
    const std::unique_ptr<Device> device = make_apple_device(shape);
    for (const KernelSource& source : kernel_sources()) {
      if (source.name.find("tensor") != std::string_view::npos && !device->has_tensor_units()) continue;
      const std::string text(source.text);
      std::smatch kernel;
      const bool found = std::regex_search(text, kernel, std::regex(R"(INSTANTIATE\("(\w+)\")")) ||
                         std::regex_search(text, kernel, std::regex(R"(\nkernel void (\w+)\()"));
      ASSERT_TRUE(found) << source.name;
      EXPECT_NO_THROW(device->pipeline(kernel[1].str(), 32)) << source.name << " for the " << name(shape);
    }
  }
}

/// With the threads that each is used with: registers may leave room for fewer.
TEST(AppleDevice, MakesEveryPipelineForBothModels) {
  for (const Shape& shape : {demo, qwen36_35b}) {
    SCOPED_TRACE(name(shape));
    const std::unique_ptr<Device> device = make_apple_device(shape);
    constexpr int context = 256;
    const DeviceWeights no_weights;
    const Sequences sequences(*device, shape, 1, context);
    const View turns = sequences.logits();
    EXPECT_NO_THROW(Decoder(*device, shape, no_weights, sequences, turns, context));
    EXPECT_NO_THROW(SampleSlots(*device, 1, shape.vocabulary));
    EXPECT_NO_THROW(Prefill(*device, shape, no_weights, sequences, turns, false));
    if (device->has_tensor_units()) {
      EXPECT_NO_THROW(Prefill(*device, shape, no_weights, sequences, turns, true));
    }
  }
}

TEST(AppleDevice, NamesAKernelThatIsNotThere) {
  const std::unique_ptr<Device> device = make_apple_device(demo);
  EXPECT_NE(test::message_of([&] { device->pipeline("no_such_kernel", 32); }).find("no_such_kernel"),
            std::string::npos);
}

TEST(AppleDevice, ReadsAFileThatIsMapped) {
  const std::unique_ptr<Device> device = make_apple_device(demo);
  const test::TemporaryFolder folder;
  const std::size_t bytes = 4 * device->map_alignment();
  test::write_file(folder.path() / "pages", std::string(bytes, '\1'));
  const MappedFile file(folder.path() / "pages");
  const std::unique_ptr<Buffer> words = device->map(file.bytes());
  ASSERT_NE(words, nullptr);
  // The kernel that measures the memory's speed sums words: 256 threads of one threadgroup, four at a time.
  const std::unique_ptr<Pipeline> kernel = device->pipeline("read_words", 256);
  const std::unique_ptr<Buffer> sums = device->allocate(256 * sizeof(std::uint32_t), Hazards::tracked);
  const auto count = static_cast<std::uint32_t>(bytes / 16);
  const std::unique_ptr<Pass> pass = device->begin();
  pass->dispatch(*kernel, {View(words), View(sums), constants(count)}, Grid{1});
  pass->commit();
  pass->wait();
  std::uint64_t sum = 0;
  for (const std::uint32_t of_thread : sums->as<std::uint32_t>()) sum += of_thread;
  EXPECT_EQ(sum, std::uint64_t{bytes / 4} * 0x01010101U);
  EXPECT_GT(pass->seconds(), 0.0);
}

TEST(AppleDevice, MayBeLeftWithAPassUnderWay) {
  const std::unique_ptr<Device> device = make_apple_device(demo);
  device->expect_work();
  { const std::unique_ptr<Pass> never_given = device->begin(); }
  const std::unique_ptr<Pass> pass = device->begin();
  pass->commit();
}

}  // namespace
}  // namespace calla::metal
