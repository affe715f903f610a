// What device_apple.mm uses of Apple's Dispatch, declared by hand from Apple's documentation (the page of
// each is named, below documentation/dispatch/). With automatic reference counting its objects are counted
// too.
#pragma once
#include <Foundation/Foundation.h>

#pragma clang assume_nonnull begin

// dispatch_semaphore_t; macOS 10.6
@protocol OS_dispatch_semaphore <NSObject>
@end
typedef NSObject<OS_dispatch_semaphore>* dispatch_semaphore_t;

// dispatch_time_t; macOS 10.6: nanoseconds of a clock that stands still while the machine sleeps
typedef uint64_t dispatch_time_t;
enum : dispatch_time_t { DISPATCH_TIME_NOW = 0 };
#define NSEC_PER_SEC 1000000000ULL
extern "C" dispatch_time_t dispatch_time(dispatch_time_t when, int64_t delta);

// dispatch_semaphore_create: must not go while its count is below the one it was made with; macOS 10.6
extern "C" dispatch_semaphore_t dispatch_semaphore_create(intptr_t value)
    __attribute__((ns_returns_retained));
extern "C" intptr_t dispatch_semaphore_signal(dispatch_semaphore_t semaphore);
// Zero, or not zero where the time came first.
extern "C" intptr_t dispatch_semaphore_wait(dispatch_semaphore_t semaphore, dispatch_time_t timeout);

#pragma clang assume_nonnull end
