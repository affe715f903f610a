// What the GPU is given to do: command buffers, and the buffers and kernels that they name.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#import <Metal/Metal.h>
#include <dispatch/dispatch.h>
#include <fmt/format.h>

#include "base/error.h"
#include "metal/cocoa.h"
#include "metal/device.h"
#include "metal/residency_apple.h"
#include "model/backend.h"

namespace calla::metal {

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

class ApplePass final : public Pass {
 public:
  /// `stuck`: of the device, whether the GPU has stopped working, so that nobody waits for it any more.
  ApplePass(id<MTLCommandBuffer> command_buffer, id<MTLComputeCommandEncoder> encoder,
            std::shared_ptr<bool> stuck)
      : command_buffer_(command_buffer), encoder_(encoder), stuck_(std::move(stuck)) {}
  /// Metal aborts when an encoder goes that has not ended; and nothing that a pass under way uses may go
  /// before it.
  ~ApplePass() override {
    @autoreleasepool {
      if (encoder_ != nil) [encoder_ endEncoding];
      finish();
      encoder_ = nil;
      command_buffer_ = nil;  // here, where there is a pool for what its end leaves behind
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
      // The handler may outlive the pass: it has the semaphore alone.
      const dispatch_semaphore_t ended = dispatch_semaphore_create(0);
      [command_buffer_ addCompletedHandler:^(id<MTLCommandBuffer>) {
        dispatch_semaphore_signal(ended);
      }];
      [command_buffer_ commit];
      ended_ = ended;
    }
  }
  void wait() override {
    pooled([this] {
      if (!finish()) throw stuck();
      if ([command_buffer_ status] != MTLCommandBufferStatusCompleted) fail([command_buffer_ error]);
    });
  }
  double seconds() const override { return [command_buffer_ GPUEndTime] - [command_buffer_ GPUStartTime]; }

  static DeviceLost stuck() {
    return {"Metal", fmt::format("the GPU has not ended a pass in {} seconds", patience),
            "start the program again, and the Mac if that does not help"};
  }

 private:
  static constexpr std::size_t max_constants = 4096;  // bytes that setBytes: takes
  static constexpr std::size_t max_arguments = 31;
  // A pass takes milliseconds, and Metal's own watchdog ends one that takes seconds. But drivers are known to
  // lose a pass, so that neither its end nor an error is ever told, and waitUntilCompleted waits for ever.
  static constexpr std::int64_t patience = 120;

  /// Waits until a committed pass is done, or failed. False when the GPU does not come to an end.
  bool finish() {
    if (ended_ == nil) return true;
    if (*stuck_) return false;
    if (dispatch_semaphore_wait(
            ended_, dispatch_time(DISPATCH_TIME_NOW, patience * std::int64_t{NSEC_PER_SEC})) != 0) {
      *stuck_ = true;
      return false;
    }
    ended_ = nil;
    [command_buffer_ waitUntilCompleted];  // for the handler, which has just been called, to return
    return true;
  }

  [[noreturn]] static void fail(NSError* error) {
    const NSInteger code = error == nil ? 0 : [error code];
    std::string problem = fmt::format("the GPU gave up a pass with code {}: {}", code, describe(error));
    NSArray<id<MTLCommandBufferEncoderInfo>>* encoders =
        [error userInfo][MTLCommandBufferEncoderInfoErrorKey];
    if (id<MTLCommandBufferEncoderInfo> encoder = [encoders firstObject])
      problem += fmt::format(" (its encoder is in state {})", static_cast<int>([encoder errorState]));
    throw DeviceLost("Metal", problem, advice(code));
  }

  /// What an owner can do about a pass that failed.
  static std::string_view advice(NSInteger code) {
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

  id<MTLCommandBuffer> command_buffer_;
  id<MTLComputeCommandEncoder> encoder_;  // nil once the pass is committed
  dispatch_semaphore_t ended_ = nil;      // while it is committed and nobody has seen its end
  const std::shared_ptr<bool> stuck_;
};

}  // namespace calla::metal
