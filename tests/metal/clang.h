// clang as a judge of sources that this machine cannot build: what it says of them, without making anything.
#pragma once
#include <filesystem>
#include <string>

#include "model/shape.h"

namespace calla::test {

/// What a compiler said; empty where it had nothing to say.
using Complaints = std::string;

/// Why there is no clang to ask, or empty.
std::string no_clang();

/// A file of Objective-C++ for macOS, against the declarations of tests/metal/apple.
Complaints objective_cxx(const std::filesystem::path& file);

/// A file of C++ with what it has for a Mac, where that needs no header of Apple's.
Complaints cxx_for_a_mac(const std::filesystem::path& file);

/// A file of kernels, in the OpenCL C++ mode, compiled for a shape.
Complaints kernels(const std::filesystem::path& file, const Shape& shape);

}  // namespace calla::test

#define CALLA_REQUIRE_CLANG() \
  if (const std::string reason = ::calla::test::no_clang(); !reason.empty()) GTEST_SKIP() << reason
