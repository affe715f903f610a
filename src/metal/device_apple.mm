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
#include "metal/residency_apple.h"

namespace calla::metal {
namespace {

constexpr std::size_t max_constants = 4096;  // bytes that setBytes: takes
constexpr std::size_t max_arguments = 31;

/// A number that an older SDK need not have a name for.
constexpr auto gpu_family(Family family) {
  return static_cast<MTLGPUFamily>(1000 + static_cast<int>(family));
}

class AppleBuffer final : public Buffer {
 public:
  AppleBuffer(id<MTLBuffer> buffer, std::size_t bytes, std::shared_ptr<Residency> residency)
      : Buffer({static_cast<std::byte*>([buffer contents]), bytes}),
        handle(buffer),
        residency_(std::move(residency)) {
    residency_->add(handle);
  }
  ~AppleBuffer() override {
    @autoreleasepool {
      residency_->remove(handle);
    }
  }

  const id<MTLBuffer> handle;

 private:
  const std::shared_ptr<Residency> residency_;
};

class ApplePipeline final : public Pipeline {
 public:
  ApplePipeline(std::string_view name, std::uint32_t threads, id<MTLComputePipelineState> state)
      : Pipeline(name, threads), handle(state) {}

  const id<MTLComputePipelineState> handle;
};

/// What an owner can do about a pass that failed.
std::string_view advice(NSInteger code) {
  switch (code) {
    case MTLCommandBufferErrorOutOfMemory:
      return "close other programs, or run with fewer slots or a shorter context";
    case MTLCommandBufferErrorTimeout:
    case MTLCommandBufferErrorPageFault:
    case MTLCommandBufferErrorAccessRevoked:
      return "start the program again: the system refuses further work after this";
    default:
      return "start the program again";
  }
}

class ApplePass final : public Pass {
 public:
  ApplePass(id<MTLCommandBuffer> command_buffer, id<MTLComputeCommandEncoder> encoder)
      : command_buffer_(command_buffer), encoder_(encoder) {}
  /// Metal aborts when an encoder goes that has not ended; and nothing that a pass under way uses may go
  /// before it.
  ~ApplePass() override {
    @autoreleasepool {
      if (encoder_ != nil) [encoder_ endEncoding];
      if (committed_) [command_buffer_ waitUntilCompleted];
    }
  }

  using Pass::dispatch;
  void dispatch(const Pipeline& pipeline, std::span<const Argument> arguments, Grid grid) override {
    if (arguments.size() > max_arguments)
      throw Error(pipeline.name(),
                  fmt::format("has {} arguments; Metal has room for {}", arguments.size(), max_arguments));
    [encoder_ setComputePipelineState:static_cast<const ApplePipeline&>(pipeline).handle];
    NSUInteger index = 0;
    for (const Argument& argument : arguments) {
      if (const auto* view = std::get_if<View>(&argument)) {
        [encoder_ setBuffer:static_cast<const AppleBuffer*>(view->buffer)->handle
                     offset:view->offset
                    atIndex:index];
      } else {
        const std::span<const std::byte> bytes = std::get<Constants>(argument).bytes;
        if (bytes.size() > max_constants)
          throw Error(pipeline.name(), fmt::format("is given {} bytes of constants; Metal copies {}",
                                                   bytes.size(), max_constants));
        [encoder_ setBytes:bytes.data() length:bytes.size() atIndex:index];
      }
      ++index;
    }
    [encoder_ dispatchThreadgroups:MTLSizeMake(grid.x, grid.y, grid.z)
             threadsPerThreadgroup:MTLSizeMake(pipeline.threads(), 1, 1)];
  }
  void barrier() override { [encoder_ memoryBarrierWithScope:MTLBarrierScopeBuffers]; }
  void commit() override {
    @autoreleasepool {
      [encoder_ endEncoding];
      encoder_ = nil;
      [command_buffer_ commit];
      committed_ = true;
    }
  }
  void wait() override {
    pooled([this] {
      [command_buffer_ waitUntilCompleted];
      if ([command_buffer_ status] != MTLCommandBufferStatusCompleted) fail([command_buffer_ error]);
    });
  }
  double seconds() const override { return [command_buffer_ GPUEndTime] - [command_buffer_ GPUStartTime]; }

 private:
  [[noreturn]] static void fail(NSError* error) {
    const NSInteger code = error == nil ? 0 : [error code];
    std::string problem = fmt::format("the GPU gave up a pass with code {}: {}", code, describe(error));
    NSArray<id<MTLCommandBufferEncoderInfo>>* encoders =
        [error userInfo][MTLCommandBufferEncoderInfoErrorKey];
    if (id<MTLCommandBufferEncoderInfo> encoder = [encoders firstObject])
      problem += fmt::format(" (its encoder is in state {})", static_cast<int>([encoder errorState]));
    throw Error("Metal", problem, advice(code));
  }

  const id<MTLCommandBuffer> command_buffer_;
  id<MTLComputeCommandEncoder> encoder_;  // nil once the pass is committed
  bool committed_ = false;
};

/// Asks the GPU what it is; empty, with the reason, where it cannot be used.
AppleGpu examine(id<MTLDevice> device) {
  AppleGpu gpu;
  if (device == nil) {
    gpu.reason = "Metal gives this process no GPU";
    return gpu;
  }
  const std::string name = to_string([device name]);
  for (const Family family : {Family::apple7, Family::apple8, Family::apple9, Family::apple10}) {
    if (![device supportsFamily:gpu_family(family)]) continue;
    gpu.family = family;
    gpu.name = name;
  }
  // Virtual machines show a GPU of an older family, which compiles kernels and does not compute as Apple's
  // do.
  if (gpu.name.empty() || name.find("Paravirtual") != std::string::npos) {
    gpu.name.clear();
    gpu.reason = fmt::format("{} is none of Apple's GPUs from the M1 on", name);
  }
  gpu.working_set = [device recommendedMaxWorkingSetSize];
  return gpu;
}

bool examine_tensor_units(id<MTLDevice> device) {
  // bfloat16 operands need 26.1; 26.2 is the first version whose results others trust.
  if (@available(macOS 26.2, *))
    return architecture_has_tensor_units(to_string([[device architecture] name]));
  return false;
}

class AppleDevice final : public Device {
 public:
  AppleDevice(id<MTLDevice> device, AppleGpu gpu, const Shape& shape)
      : device_(device),
        gpu_(std::move(gpu)),
        queue_([device newCommandQueue]),
        tensor_units_(examine_tensor_units(device)),
        compiler_(device, shape, tensor_units_) {
    if (queue_ == nil) throw Error("Metal", "gives no command queue");
    residency_ = std::make_shared<Residency>(device_, queue_);
  }

  std::string_view name() const override { return gpu_.name; }
  Family family() const override { return gpu_.family; }
  bool has_tensor_units() const override { return tensor_units_; }
  std::uint64_t max_buffer() const override { return [device_ maxBufferLength]; }
  std::uint64_t working_set() const override { return gpu_.working_set; }

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
      keep_alive_.touch();
      residency_->update();
      MTLCommandBufferDescriptor* descriptor = [[MTLCommandBufferDescriptor alloc] init];
      descriptor.retainedReferences = NO;
      descriptor.errorOptions = MTLCommandBufferErrorOptionEncoderExecutionStatus;
      id<MTLCommandBuffer> commands = [queue_ commandBufferWithDescriptor:descriptor];
      id<MTLComputeCommandEncoder> encoder =
          [commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
      if (encoder == nil) throw Error("Metal", "gives no command buffer");
      result = std::make_unique<ApplePass>(commands, encoder);
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
