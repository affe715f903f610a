#include "metal/clang.h"

#include <array>
#include <cstdio>
#include <memory>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "metal/shape_macros.h"
#include "support/support.h"

namespace calla::test {
namespace {

/// What a shell command prints, its errors too; and "failed" where it fails in silence.
std::string output(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return "cannot run " + command;
  std::string text;
  std::array<char, 4096> part{};
  while (const std::size_t bytes = fread(part.data(), 1, part.size(), pipe)) text.append(part.data(), bytes);
  const int status = pclose(pipe);
  return text.empty() && status != 0 ? "failed: " + command : text;
}

std::string quoted(const std::filesystem::path& path) { return fmt::format("'{}'", path.string()); }

/// The folders of C++'s and C's headers on this machine, which clang does not look into when it compiles for
/// macOS.
std::string system_headers() {
  std::istringstream lines(output("clang++ -x c++ -E -v /dev/null"));
  std::string flags;
  bool in_list = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("End of search list")) break;
    if (in_list) flags += " -isystem" + line;
    if (line.starts_with("#include <...>")) in_list = true;
  }
  return flags;
}

/// Apple's target with this processor, whose headers of C are at hand.
std::string target() {
  const std::string machine = output("uname -m");
  return (machine.starts_with("aarch64") ? "arm64" : "x86_64") + std::string("-apple-macosx14.0");
}

}  // namespace

std::string no_clang() {
#ifdef __APPLE__
  return "Apple's own compilers read these sources here";
#else
  static const std::string version = output("clang++ --version");
  return version.find("clang version") == std::string::npos ? "there is no clang" : "";
#endif
}

Complaints objective_cxx(const std::filesystem::path& file) {
  // C's headers of Linux want to see Linux, and call a macro as Apple's clang calls a word of its own.
  return output(fmt::format(
      "clang++ -target {} -x objective-c++ -std=c++20 -fblocks -fobjc-arc -fsyntax-only"
      " -Wall -Wextra -Werror -Wunguarded-availability"
      " -D__linux__ -D_GNU_SOURCE -U__nonnull -nostdinc -nostdinc++ {} -I {} -I {} {}",
      target(), system_headers(), quoted(source("src")), quoted(source("tests/metal/apple")), quoted(file)));
}

Complaints cxx_for_a_mac(const std::filesystem::path& file) {
  return output(fmt::format(
      "clang++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -DCALLA_WITH_METAL=1 -I {} -I {} {}",
      quoted(source("src")), quoted(source("tests")), quoted(file)));
}

Complaints kernels(const std::filesystem::path& file, const Shape& shape) {
  std::string macros;
  for (const auto& [name, value] : metal::shape_macros(shape)) macros += fmt::format(" -D{}={}", name, value);
  // Metal is C++14, and C++17 from the version on that the tensor units need.
  const bool is_newer = file.stem().string().find("tensor") != std::string::npos;
  // Without OpenCL's own functions and types; without double, so that its literals are an error.
  return output(
      fmt::format("clang -x cl -cl-std=clc++2021 -cl-no-stdinc -target spir64 -fsyntax-only"
                  " -Xclang -cl-ext=-cl_khr_fp64,-__opencl_c_fp64 -Wall -Wextra -Werror"
                  " -Wno-unknown-attributes -Wno-ignored-attributes -Wno-unknown-pragmas"
                  " -Wno-unused-function -Wno-undefined-inline {} {} -I {} -I {} -I {} {}",
                  is_newer ? "" : "-Wpre-c++17-compat", macros, quoted(source("tests/metal/apple/opencl")),
                  quoted(source("src")), quoted(source("tests")), quoted(file)));
}

}  // namespace calla::test
