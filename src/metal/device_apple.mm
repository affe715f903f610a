// Apple's Metal. Compiled with automatic reference counting: an object lives as long as somebody has a strong
// pointer to it. Command buffers have none to what they use: buffers and pipelines live as device.h asks.
#include "metal/device_apple.h"

#include <chrono>
#include <utility>

#import <Metal/Metal.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "metal/architecture.h"
#include "metal/cocoa.h"
#include "metal/keep_alive.h"
#include "metal/kernel_compiler_apple.h"
#include "metal/pass_apple.h"
#include "metal/residency_apple.h"

namespace calla::metal {
namespace {

/// That of the M1, which all later GPUs support as well. A number that an older SDK need not have a name for.
constexpr auto first_family = static_cast<MTLGPUFamily>(1007);

/// Asks the GPU what it is; empty, with the reason, where it cannot be used.
AppleGpu examine(id<MTLDevice> device) {
  AppleGpu gpu;
  if (device == nil) {
    gpu.reason = "Metal gives this process no GPU";
    return gpu;
  }
  const std::string name = to_string([device name]);
  // Virtual machines show a GPU of an older family, which compiles kernels and does not compute as Apple's
  // do.
  if ([device supportsFamily:first_family] && name.find("Paravirtual") == std::string::npos) {
    gpu.name = name;
  } else {
    gpu.reason = fmt::format("{} is none of Apple's GPUs from the M1 on", name);
  }
  gpu.architecture = to_string([[device architecture] name]);
  gpu.working_set = [device recommendedMaxWorkingSetSize];
  return gpu;
}

bool has_tensor_units(const AppleGpu& gpu) {
  // bfloat16 operands need 26.1; 26.2 is the first version whose results others trust.
  if (@available(macOS 26.2, *)) return architecture_has_tensor_units(gpu.architecture);
  return false;
}

class AppleDevice final : public Device {
 public:
  AppleDevice(id<MTLDevice> device, AppleGpu gpu, const Shape& shape)
      : device_(device),
        gpu_(std::move(gpu)),
        queue_([device newCommandQueue]),
        tensor_units_(metal::has_tensor_units(gpu_)),
        compiler_(device, shape, tensor_units_) {
    if (queue_ == nil) throw Error("Metal", "gives no command queue");
    residency_ = std::make_shared<Residency>(device_, queue_);
  }

  std::string_view name() const override { return gpu_.name; }
  bool has_tensor_units() const override { return tensor_units_; }
  std::uint64_t max_buffer() const override { return [device_ maxBufferLength]; }

  std::unique_ptr<Buffer> allocate(std::size_t bytes, Hazards hazards) override {
    const MTLResourceOptions tracking = hazards == Hazards::tracked ? MTLResourceHazardTrackingModeTracked
                                                                    : MTLResourceHazardTrackingModeUntracked;
    std::unique_ptr<Buffer> result;
    pooled([&] {
      id<MTLBuffer> buffer = nil;
      if (bytes <= max_buffer())
        buffer = [device_ newBufferWithLength:bytes options:MTLResourceStorageModeShared | tracking];
      if (buffer == nil)
        throw Error("Metal",
                    fmt::format("gives no buffer of {} bytes; the largest may have {}", bytes, max_buffer()));
      result = std::make_unique<AppleBuffer>(buffer, bytes, residency_);
    });
    return result;
  }
  std::unique_ptr<Buffer> map(std::span<const std::byte> pages) override {
    std::unique_ptr<Buffer> result;
    if (pages.size() > max_buffer()) return result;
    pooled([&] {
      id<MTLBuffer> buffer = [device_
          newBufferWithBytesNoCopy:const_cast<std::byte*>(pages.data())
                            length:pages.size()
                           options:MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked
                       deallocator:nil];
      if (buffer != nil) result = std::make_unique<AppleBuffer>(buffer, pages.size(), residency_);
    });
    return result;
  }
  std::size_t map_alignment() const override { return static_cast<std::size_t>(getpagesize()); }

  std::unique_ptr<Pipeline> pipeline(std::string_view kernel, std::uint32_t threads) override {
    std::unique_ptr<Pipeline> result;
    pooled([&] {
      result = std::make_unique<ApplePipeline>(kernel, threads, compiler_.pipeline(kernel, threads));
    });
    return result;
  }

  std::unique_ptr<Pass> begin() override {
    std::unique_ptr<Pass> result;
    pooled([&] {
      if (*stuck_) throw ApplePass::stuck();  // Metal would wait at the 65th
      keep_alive_.touch();
      residency_->update();
      MTLCommandBufferDescriptor* descriptor = [[MTLCommandBufferDescriptor alloc] init];
      descriptor.retainedReferences = NO;
      descriptor.errorOptions = MTLCommandBufferErrorOptionEncoderExecutionStatus;
      id<MTLCommandBuffer> commands = [queue_ commandBufferWithDescriptor:descriptor];
      id<MTLComputeCommandEncoder> encoder =
          [commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
      if (encoder == nil) throw Error("Metal", "gives no command buffer");
      result = std::make_unique<ApplePass>(commands, encoder, stuck_);
    });
    return result;
  }

  void expect_work() override {
    pooled([this] { residency_->update(); });
    keep_alive_.touch();
  }

 private:
  const id<MTLDevice> device_;
  const AppleGpu gpu_;
  const id<MTLCommandQueue> queue_;
  std::shared_ptr<Residency> residency_;
  const std::shared_ptr<bool> stuck_ = std::make_shared<bool>(false);  // the GPU, and a pass has found out
  bool tensor_units_ = false;
  KernelCompiler compiler_;
  id<NSObject> activity_ = nil;  // the keeper's own
  /// After a second or two without use the system takes buffers from the GPU, and slows its clock.
  KeepAlive keep_alive_{
      {.begin =
           [this] {
             pooled([this] {
               activity_ = [[NSProcessInfo processInfo]
                   beginActivityWithOptions:NSActivityUserInitiated | NSActivityLatencyCritical
                                     reason:@"answering requests"];
             });
           },
       .beat = [this] { pooled([this] { residency_->request(); }); },
       .end =
           [this] {
             pooled([this] {
               if (activity_ != nil) [[NSProcessInfo processInfo] endActivity:activity_];
               activity_ = nil;
             });
           }},
      std::chrono::milliseconds(500),
      std::chrono::minutes(3)};
};

}  // namespace

AppleGpu find_apple_device() {
  AppleGpu gpu;
  pooled([&] { gpu = examine(MTLCreateSystemDefaultDevice()); });
  return gpu;
}

std::unique_ptr<Device> make_apple_device(const Shape& shape) {
  std::unique_ptr<Device> result;
  pooled([&] {
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    AppleGpu gpu = examine(device);
    if (!gpu.reason.empty()) throw Error("Metal", gpu.reason, "run with --backend cpu");
    result = std::make_unique<AppleDevice>(device, std::move(gpu), shape);
  });
  return result;
}

}  // namespace calla::metal
