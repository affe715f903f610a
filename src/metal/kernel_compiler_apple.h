// From a kernel's name to what the GPU runs.
#pragma once
#include <string_view>
#include <unordered_map>

#import <Metal/Metal.h>
#include <fmt/format.h>

#include "base/error.h"
#include "metal/cocoa.h"
#include "metal/kernel_sources.h"
#include "metal/shape_macros.h"

namespace calla::metal {

/// Compiles the kernels' sources for a shape, each when a kernel of it is first asked for.
class KernelCompiler {
 public:
  KernelCompiler(id<MTLDevice> device, const Shape& shape, bool tensor_units)
      : device_(device), macros_(macros(shape)), tensor_units_(tensor_units) {}

  /// Throws Error that names the kernel or its source.
  id<MTLComputePipelineState> pipeline(std::string_view kernel, std::uint32_t threads) {
    MTLComputePipelineDescriptor* descriptor = [[MTLComputePipelineDescriptor alloc] init];
    descriptor.label = to_cocoa(kernel);
    descriptor.computeFunction = function(kernel);
    descriptor.maxTotalThreadsPerThreadgroup = threads;
    descriptor.threadGroupSizeIsMultipleOfThreadExecutionWidth = YES;
    NSError* error = nil;
    id<MTLComputePipelineState> state = [device_ newComputePipelineStateWithDescriptor:descriptor
                                                                               options:MTLPipelineOptionNone
                                                                            reflection:nil
                                                                                 error:&error];
    if (state == nil) throw Error(kernel, "Metal makes no pipeline of it: " + describe(error));
    if ([state threadExecutionWidth] != simd_width)
      throw Error(kernel, fmt::format("runs in SIMD-groups of {}, not of {}", [state threadExecutionWidth],
                                      simd_width));
    if ([state maxTotalThreadsPerThreadgroup] < threads)
      throw Error(kernel, fmt::format("may have {} threads a threadgroup, and needs {}",
                                      [state maxTotalThreadsPerThreadgroup], threads));
    if ([state staticThreadgroupMemoryLength] > [device_ maxThreadgroupMemoryLength])
      throw Error(kernel,
                  fmt::format("needs {} bytes of threadgroup memory of {}",
                              [state staticThreadgroupMemoryLength], [device_ maxThreadgroupMemoryLength]));
    return state;
  }

 private:
  static constexpr NSUInteger simd_width = 32;
  // Numbers that an older SDK need not have names for.
  static constexpr auto language_3_1 = static_cast<MTLLanguageVersion>((3 << 16) + 1);
  static constexpr auto language_4_0 = static_cast<MTLLanguageVersion>(4 << 16);

  static NSDictionary<NSString*, NSObject*>* macros(const Shape& shape) {
    NSMutableDictionary<NSString*, NSObject*>* result = [[NSMutableDictionary alloc] init];
    for (const ShapeMacro& macro : shape_macros(shape)) result[to_cocoa(macro.name)] = @(macro.value);
    return result;
  }

  static bool is_for_tensor_units(const KernelSource& source) {
    return source.name.find("tensor") != std::string_view::npos;
  }

  /// Compiles a source, or finds it compiled.
  id<MTLLibrary> library(const KernelSource& source) {
    if (const auto found = libraries_.find(source.name); found != libraries_.end()) return found->second;
    MTLCompileOptions* options = [[MTLCompileOptions alloc] init];
    options.languageVersion = is_for_tensor_units(source) ? language_4_0 : language_3_1;
    options.preprocessorMacros = macros_;
    if (@available(macOS 15.0, *)) {
      options.mathMode = MTLMathModeSafe;
      options.mathFloatingPointFunctions = MTLMathFloatingPointFunctionsPrecise;
    } else {
      options.fastMathEnabled = NO;
    }
    NSError* error = nil;  // beside a library it is a warning
    id<MTLLibrary> library = [device_ newLibraryWithSource:to_cocoa(source.text)
                                                   options:options
                                                     error:&error];
    if (library == nil) throw Error(source.name, "Metal's compiler refuses it: " + describe(error));
    if ([[library functionNames] count] == 0)
      throw Error(source.name, "Metal's compiler found no kernel in it");
    library.label = to_cocoa(source.name);
    return libraries_.emplace(source.name, library).first->second;
  }

  id<MTLFunction> function(std::string_view kernel) {
    NSString* name = to_cocoa(kernel);
    for (const KernelSource& source : kernel_sources()) {
      if (source.text.find(kernel) == std::string_view::npos) continue;
      if (is_for_tensor_units(source) && !tensor_units_) continue;
      id<MTLLibrary> compiled = library(source);
      if (![[compiled functionNames] containsObject:name]) continue;
      if (id<MTLFunction> function = [compiled newFunctionWithName:name]) return function;
    }
    throw Error(kernel, "no source has a kernel of this name for this GPU");
  }

  const id<MTLDevice> device_;
  NSDictionary<NSString*, NSObject*>* const macros_;
  const bool tensor_units_;
  std::unordered_map<std::string_view, id<MTLLibrary>> libraries_;
};

}  // namespace calla::metal
