// Which buffers the GPU keeps in its address space.
#pragma once
#include <mutex>

#import <Metal/Metal.h>

#include "base/error.h"
#include "metal/cocoa.h"

namespace calla::metal {

/// The buffers that stay in the GPU's address space from pass to pass. Before macOS 15 each pass brings its
/// own.
class Residency {
 public:
  Residency(id<MTLDevice> device, id<MTLCommandQueue> queue) {
    if (@available(macOS 15.0, *)) {
      MTLResidencySetDescriptor* descriptor = [[MTLResidencySetDescriptor alloc] init];
      descriptor.label = @"calla";
      NSError* error = nil;
      id<MTLResidencySet> set = [device newResidencySetWithDescriptor:descriptor error:&error];
      if (set == nil) throw Error("Metal", "no residency set: " + describe(error));
      [queue addResidencySet:set];
      set_ = set;
    }
  }
  void add(id<MTLBuffer> buffer) {
    if (@available(macOS 15.0, *)) {
      const std::scoped_lock lock(mutex_);
      [static_cast<id<MTLResidencySet>>(set_) addAllocation:buffer];
      changed_ = true;
    }
  }
  void remove(id<MTLBuffer> buffer) {
    if (@available(macOS 15.0, *)) {
      const std::scoped_lock lock(mutex_);
      [static_cast<id<MTLResidencySet>>(set_) removeAllocation:buffer];
      [static_cast<id<MTLResidencySet>>(set_) commit];
      changed_ = false;
    }
  }
  /// To be called before a pass begins: makes what was added since part of the set.
  void update() {
    if (@available(macOS 15.0, *)) {
      const std::scoped_lock lock(mutex_);
      if (changed_) [static_cast<id<MTLResidencySet>>(set_) commit];
      changed_ = false;
    }
  }
  /// Brings back what the system has taken from the GPU for want of use.
  void request() {
    if (@available(macOS 15.0, *)) {
      const std::scoped_lock lock(mutex_);
      [static_cast<id<MTLResidencySet>>(set_) requestResidency];
    }
  }

 private:
  std::mutex mutex_;  // sets know no threads
  id set_ = nil;      // of MTLResidencySet, a name that macOS 14 does not have
  bool changed_ = false;
};

}  // namespace calla::metal
