// What device_apple.mm uses of Apple's Foundation, declared by hand from Apple's documentation (the page of
// each is named): it stands in for the framework where there is none, so that a call that does not exist does
// not compile. Nullability and availability as documented; the program asks for macOS 14.
#pragma once
#include <objc_types.h>
#include <stddef.h>
#include <stdint.h>

#pragma clang assume_nonnull begin

@class NSString;
@class NSError;

// documentation/objectivec/nsobject-c.protocol; in every macOS
@protocol NSObject
@end

// documentation/objectivec/nsobject-swift.class; in every macOS
__attribute__((objc_root_class))
@interface NSObject<NSObject>
+ (instancetype)alloc;
- (instancetype)init;
@end

// documentation/foundation/nscopying; in every macOS
@protocol NSCopying
@end

// documentation/foundation/nsstringencoding; the value of NSUTF8StringEncoding is documented as 4
typedef NSUInteger NSStringEncoding;
enum : NSStringEncoding { NSUTF8StringEncoding = 4 };

// documentation/foundation/nsstring; in every macOS
@interface NSString : NSObject <NSCopying>
// documentation/foundation/nsstring/1407339-initwithbytes: nil where the bytes are not of the encoding
- (nullable instancetype)initWithBytes:(const void*)bytes
                                length:(NSUInteger)length
                              encoding:(NSStringEncoding)encoding;
// documentation/foundation/nsstring/1411189-utf8string: lives as long as the pool that is open
@property(nullable, readonly) const char* UTF8String;
@end

// documentation/foundation/nsnumber; what @(...) makes
@interface NSNumber : NSObject <NSCopying>
+ (NSNumber*)numberWithInt:(int)value;
@end

// documentation/foundation/nsarray; in every macOS
@interface NSArray<ObjectType> : NSObject <NSCopying>
@property(readonly) NSUInteger count;
- (BOOL)containsObject:(ObjectType)object;
@property(nullable, nonatomic, readonly) ObjectType firstObject;  // macOS 10.6
@end

// documentation/foundation/nsdictionary; in every macOS
@interface NSDictionary<KeyType, ObjectType> : NSObject <NSCopying>
// What [key] calls; documentation/foundation/nsdictionary/objectforkeyedsubscript: macOS 10.8
- (nullable ObjectType)objectForKeyedSubscript:(KeyType)key;
@end

// documentation/foundation/nsmutabledictionary; what [key] = calls: macOS 10.8
@interface NSMutableDictionary<KeyType, ObjectType> : NSDictionary <KeyType, ObjectType>
- (void)setObject:(nullable ObjectType)object forKeyedSubscript:(KeyType<NSCopying>)key;
@end

// documentation/foundation/nserror; in every macOS
typedef NSString* NSErrorUserInfoKey;
@interface NSError : NSObject <NSCopying>
@property(readonly) NSInteger code;
@property(readonly, copy) NSDictionary<NSErrorUserInfoKey, id>* userInfo;
@property(readonly, copy) NSString* localizedDescription;
@end

// documentation/foundation/nsactivityoptions; macOS 10.9
typedef uint64_t NSActivityOptions;
enum : NSActivityOptions {
  NSActivityUserInitiated = 0x00FFFFFFULL | (1ULL << 20),
  NSActivityLatencyCritical = 0xFF00000000ULL,
};

// documentation/foundation/nsprocessinfo; activities: macOS 10.9
@interface NSProcessInfo : NSObject
@property(class, readonly, strong) NSProcessInfo* processInfo;
- (id<NSObject>)beginActivityWithOptions:(NSActivityOptions)options reason:(NSString*)reason;
- (void)endActivity:(id<NSObject>)activity;
@end

#pragma clang assume_nonnull end
