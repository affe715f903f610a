// What device_apple.mm uses of Apple's Metal, declared by hand from Apple's documentation (the page of each
// is named, below documentation/metal/): it stands in for the framework where there is none, so that a call
// that does not exist does not compile, nor one that needs a newer macOS than 14 and does not ask for it.
#pragma once
#include <Foundation/Foundation.h>

#define CALLA_FROM_MACOS(version) __attribute__((availability(macos, introduced = version)))

#pragma clang assume_nonnull begin

@protocol MTLDevice
, MTLCommandQueue, MTLCommandBuffer, MTLComputeCommandEncoder, MTLBuffer, MTLLibrary, MTLFunction;
@protocol MTLComputePipelineState
, MTLResidencySet;
@class MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineReflection,
    MTLCommandBufferDescriptor;
@class MTLResidencySetDescriptor, MTLArchitecture;

// mtlsize
typedef struct {
  NSUInteger width, height, depth;
} MTLSize;
static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
  return {width, height, depth};
}

// mtlgpufamily: apple7 = 1007 and so on. macOS 10.15
enum MTLGPUFamily : NSInteger {};

// mtlresourceoptions: storage modes from bit 4 on (shared is 0), hazard tracking from bit 8 on (untracked 1,
// tracked 2)
typedef NSUInteger MTLResourceOptions;
enum : MTLResourceOptions {
  MTLResourceStorageModeShared = 0U << 4,
  MTLResourceHazardTrackingModeUntracked = 1U << 8,
  MTLResourceHazardTrackingModeTracked = 2U << 8,
};

// mtllanguageversion: (major << 16) + minor
enum MTLLanguageVersion : NSUInteger {};

// mtlmathmode; macOS 15
enum MTLMathMode : NSInteger { MTLMathModeSafe = 0, MTLMathModeRelaxed = 1, MTLMathModeFast = 2 };
// mtlmathfloatingpointfunctions; macOS 15
enum MTLMathFloatingPointFunctions : NSInteger {
  MTLMathFloatingPointFunctionsFast = 0,
  MTLMathFloatingPointFunctionsPrecise = 1
};

// mtlpipelineoption
typedef NSUInteger MTLPipelineOption;
enum : MTLPipelineOption { MTLPipelineOptionNone = 0 };

// mtlbarrierscope; macOS 10.14
typedef NSUInteger MTLBarrierScope;
enum : MTLBarrierScope { MTLBarrierScopeBuffers = 1 << 0 };

// mtldispatchtype; macOS 10.14
enum MTLDispatchType : NSUInteger { MTLDispatchTypeSerial, MTLDispatchTypeConcurrent };

// mtlcommandbufferstatus
enum MTLCommandBufferStatus : NSUInteger {
  MTLCommandBufferStatusCompleted = 4,
  MTLCommandBufferStatusError = 5
};

// mtlcommandbuffererror-swift.struct/code
enum MTLCommandBufferError : NSUInteger {
  MTLCommandBufferErrorTimeout = 2,
  MTLCommandBufferErrorPageFault = 3,
  MTLCommandBufferErrorAccessRevoked = 4,  // macOS 13
  MTLCommandBufferErrorOutOfMemory = 8,
};

// mtlcommandbuffererroroption; macOS 11
typedef NSUInteger MTLCommandBufferErrorOption;
enum : MTLCommandBufferErrorOption { MTLCommandBufferErrorOptionEncoderExecutionStatus = 1 << 0 };

// mtlcommandencodererrorstate; macOS 11: unknown, completed, affected, pending, faulted
enum MTLCommandEncoderErrorState : NSInteger {};

// mtlcommandbufferencoderinfoerrorkey; macOS 11: an NSArray of MTLCommandBufferEncoderInfo, or absent
extern "C" NSErrorUserInfoKey const MTLCommandBufferEncoderInfoErrorKey;

// mtlcreatesystemdefaultdevice(): the caller owns what it gives; macOS 10.11. A command-line tool must link
// CoreGraphics.
extern "C" id<MTLDevice> _Nullable MTLCreateSystemDefaultDevice(void) __attribute__((ns_returns_retained));

// mtlarchitecture; macOS 14
CALLA_FROM_MACOS(14.0)
@interface MTLArchitecture : NSObject <NSCopying>
@property(nonatomic, readonly) NSString* name;
@end

// mtldevice
@protocol MTLDevice <NSObject>
@property(readonly) NSString* name;
@property(readonly) MTLArchitecture* architecture CALLA_FROM_MACOS(14.0);
@property(readonly) uint64_t recommendedMaxWorkingSetSize CALLA_FROM_MACOS(10.12);
@property(readonly) NSUInteger maxBufferLength CALLA_FROM_MACOS(10.14);
@property(readonly) NSUInteger maxThreadgroupMemoryLength CALLA_FROM_MACOS(10.13);
- (BOOL)supportsFamily:(MTLGPUFamily)family CALLA_FROM_MACOS(10.15);
// At most 64 command buffers that are not completed; asking for another waits.
- (nullable id<MTLCommandQueue>)newCommandQueue;
- (nullable id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
// mtldevice/1433382-newbufferwithbytesnocopy: address and length are multiples of the page
- (nullable id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)pointer
                                            length:(NSUInteger)length
                                           options:(MTLResourceOptions)options
                                       deallocator:
                                           (void (^_Nullable)(void* pointer, NSUInteger length))deallocator;
- (nullable id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                                        options:(nullable MTLCompileOptions*)options
                                          error:(NSError* _Nullable __autoreleasing* _Nullable)error;
- (nullable id<MTLComputePipelineState>)
    newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                  options:(MTLPipelineOption)options
                               reflection:(MTLComputePipelineReflection* _Nullable __autoreleasing* _Nullable)
                                              reflection
                                    error:(NSError* _Nullable __autoreleasing* _Nullable)error;
- (nullable id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor*)descriptor
                                                        error:(NSError* _Nullable __autoreleasing* _Nullable)
                                                                  error CALLA_FROM_MACOS(15.0);
@end

// mtlcompileoptions
@interface MTLCompileOptions : NSObject <NSCopying>
@property(nullable, copy, nonatomic) NSDictionary<NSString*, NSObject*>* preprocessorMacros;
@property(nonatomic) MTLLanguageVersion languageVersion;
@property(nonatomic) BOOL fastMathEnabled
    __attribute__((availability(macos, introduced=10.11, deprecated=15.0)));
@property(nonatomic) MTLMathMode mathMode CALLA_FROM_MACOS(15.0);
@property(nonatomic) MTLMathFloatingPointFunctions mathFloatingPointFunctions CALLA_FROM_MACOS(15.0);
@end

// mtllibrary
@protocol MTLLibrary <NSObject>
@property(nullable, copy, atomic) NSString* label;
@property(readonly) NSArray<NSString*>* functionNames;
- (nullable id<MTLFunction>)newFunctionWithName:(NSString*)name;
@end

// mtlfunction
@protocol MTLFunction <NSObject>
@end

// mtlcomputepipelinedescriptor
@interface MTLComputePipelineDescriptor : NSObject <NSCopying>
@property(nullable, copy, nonatomic) NSString* label;
@property(nullable, strong, nonatomic) id<MTLFunction> computeFunction;
@property(nonatomic) BOOL threadGroupSizeIsMultipleOfThreadExecutionWidth;
@property(nonatomic) NSUInteger maxTotalThreadsPerThreadgroup CALLA_FROM_MACOS(10.14);
@end

// mtlcomputepipelinestate
@protocol MTLComputePipelineState <NSObject>
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@property(readonly) NSUInteger threadExecutionWidth;
@property(readonly) NSUInteger staticThreadgroupMemoryLength CALLA_FROM_MACOS(10.13);
@end

// mtlallocation; macOS 15
@protocol MTLAllocation <NSObject>
@end

// mtlresource
@protocol MTLResource <MTLAllocation>
@end

// mtlbuffer
@protocol MTLBuffer <MTLResource>
- (void*)contents;
@end

// mtlresidencysetdescriptor
CALLA_FROM_MACOS(15.0)
@interface MTLResidencySetDescriptor : NSObject <NSCopying>
@property(nullable, copy, nonatomic) NSString* label;
@end

// mtlresidencyset
CALLA_FROM_MACOS(15.0)
@protocol MTLResidencySet <NSObject>
- (void)addAllocation:(id<MTLAllocation>)allocation;
- (void)removeAllocation:(id<MTLAllocation>)allocation;
- (void)commit;
- (void)requestResidency;
- (void)endResidency;
@end

// mtlcommandqueue
@protocol MTLCommandQueue <NSObject>
- (nullable id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor*)descriptor
    CALLA_FROM_MACOS(11.0);
- (void)addResidencySet:(id<MTLResidencySet>)residencySet CALLA_FROM_MACOS(15.0);
@end

// mtlcommandbufferdescriptor; macOS 11
@interface MTLCommandBufferDescriptor : NSObject <NSCopying>
@property(nonatomic) BOOL retainedReferences;
@property(nonatomic) MTLCommandBufferErrorOption errorOptions;
@end

// mtlcommandbufferencoderinfo; macOS 11
@protocol MTLCommandBufferEncoderInfo <NSObject>
@property(readonly, nonatomic) NSString* label;
@property(readonly, nonatomic) MTLCommandEncoderErrorState errorState;
@end

// mtlcommandbufferhandler: called on a thread of Metal's own, once, whether the GPU has come to the end or
// failed
typedef void (^MTLCommandBufferHandler)(id<MTLCommandBuffer> buffer);

// mtlcommandbuffer
@protocol MTLCommandBuffer <NSObject>
- (nullable id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)dispatchType
    CALLA_FROM_MACOS(10.14);
// mtlcommandbuffer/1442997-addcompletedhandler: before the buffer is committed
- (void)addCompletedHandler:(MTLCommandBufferHandler)block;
- (void)commit;
- (void)waitUntilCompleted;
@property(readonly) MTLCommandBufferStatus status;
@property(nullable, readonly) NSError* error;
// Seconds of the host's clock; both are there when the command buffer is completed.
@property(readonly) CFTimeInterval GPUStartTime CALLA_FROM_MACOS(10.15);
@property(readonly) CFTimeInterval GPUEndTime CALLA_FROM_MACOS(10.15);
@end

// mtlcommandencoder
@protocol MTLCommandEncoder <NSObject>
@property(nullable, copy, atomic) NSString* label;
- (void)endEncoding;
@end

// mtlcomputecommandencoder
@protocol MTLComputeCommandEncoder <MTLCommandEncoder>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBuffer:(nullable id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
// At most 4096 bytes.
- (void)setBytes:(const void*)bytes
          length:(NSUInteger)length
         atIndex:(NSUInteger)index CALLA_FROM_MACOS(10.11);
- (void)dispatchThreadgroups:(MTLSize)threadgroupsPerGrid
       threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope CALLA_FROM_MACOS(10.14);
@end

#pragma clang assume_nonnull end
