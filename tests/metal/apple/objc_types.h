// The words of Objective-C that are macros and types of Apple's headers
// (documentation/objectivec/objective-c-runtime).
#pragma once

typedef bool BOOL;  // on Apple silicon
typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef double CFTimeInterval;

#define YES __objc_yes
#define NO __objc_no
#define nil nullptr
