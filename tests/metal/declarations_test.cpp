// Apple's device, which no compiler of this machine can build, against what Apple documents:
// tests/metal/apple declares it.
#include <gtest/gtest.h>

#include "metal/clang.h"
#include "support/support.h"

namespace calla::test {
namespace {

TEST(Declarations, AppleDeviceKeepsToThem) {
  CALLA_REQUIRE_CLANG();
  EXPECT_EQ(objective_cxx(source("src/metal/device_apple.mm")), "");
}

TEST(Declarations, WhatUsesAppleDeviceKeepsToItsHeader) {
  CALLA_REQUIRE_CLANG();
  EXPECT_EQ(cxx_for_a_mac(source("src/cli/backends.cpp")), "");
  EXPECT_EQ(cxx_for_a_mac(source("tests/metal/apple/device_test.cpp")), "");
}

Complaints function_body(std::string_view body) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "body.mm";
  write_file(
      file,
      "#import <Metal/Metal.h>\n"
      "void body([[maybe_unused]] id<MTLDevice> device, [[maybe_unused]] MTLCompileOptions* options) {\n" +
          std::string(body) + "\n}\n");
  return objective_cxx(file);
}

TEST(Declarations, CallsThatAreRightPass) {
  CALLA_REQUIRE_CLANG();
  EXPECT_EQ(function_body("[device newBufferWithLength:16 options:MTLResourceStorageModeShared];"), "");
  EXPECT_EQ(function_body("if (@available(macOS 15.0, *)) options.mathMode = MTLMathModeSafe;"), "");
}

TEST(Declarations, ACallThatDoesNotExistIsAnError) {
  CALLA_REQUIRE_CLANG();
  EXPECT_NE(function_body("[device newBufferWithBytes:16];").find("no known instance method"),
            std::string::npos);
}

TEST(Declarations, AnArgumentOfAnotherTypeIsAnError) {
  CALLA_REQUIRE_CLANG();
  EXPECT_NE(function_body("[device newBufferWithLength:@\"16\" options:0];").find("cannot initialize"),
            std::string::npos);
}

TEST(Declarations, ACallOfANewerSystemIsAnErrorWhereNothingAsksForIt) {
  CALLA_REQUIRE_CLANG();
  EXPECT_NE(function_body("options.mathMode = MTLMathModeSafe;").find("only available on macOS 15.0"),
            std::string::npos);
}

}  // namespace
}  // namespace calla::test
