// What Objective-C++ of this project needs of Cocoa again and again. Compiled with automatic reference
// counting.
#pragma once
#include <exception>
#include <string>
#include <string_view>

#import <Foundation/Foundation.h>

namespace calla::metal {

/// Runs `work` with a pool for the objects that Cocoa hands out. A C++ exception does not empty a pool on its
/// way: it is let out only behind it.
template <class Work>
void pooled(Work work) {
  std::exception_ptr thrown;
  @autoreleasepool {
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
}

inline NSString* to_cocoa(std::string_view text) {
  return [[NSString alloc] initWithBytes:text.data() length:text.size() encoding:NSUTF8StringEncoding];
}

inline std::string to_string(NSString* text) {
  const char* bytes = text == nil ? nullptr : [text UTF8String];
  return bytes == nullptr ? "" : bytes;
}

inline std::string describe(NSError* error) {
  return error == nil ? "no reason given" : to_string([error localizedDescription]);
}

}  // namespace calla::metal
