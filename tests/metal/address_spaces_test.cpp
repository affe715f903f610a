// The kernels in clang's OpenCL C++ mode: whether every pointer is of the memory that it is taken for, and
// whether all is of Metal's types. A C++ compiler, which builds them for the simulator, sees neither.
#include <array>
#include <filesystem>
#include <string_view>

#include <gtest/gtest.h>

#include "metal/clang.h"
#include "support/support.h"

namespace calla::test {
namespace {

TEST(AddressSpaces, KernelsKeepThemApart) {
  CALLA_REQUIRE_CLANG();
  for (const auto& entry : std::filesystem::directory_iterator(source("src/metal/kernels"))) {
    if (entry.path().extension() != ".metal") continue;
    EXPECT_EQ(kernels(entry.path(), demo), "") << entry.path() << " for the demo model";
    EXPECT_EQ(kernels(entry.path(), qwen36_35b), "") << entry.path() << " for the 35B";
  }
}

Complaints kernel(std::string_view text) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "kernel.metal";
  write_file(file, "#include <metal_stdlib>\nusing namespace metal;\n" + std::string(text));
  return kernels(file, demo);
}

struct Wrong {
  std::string_view text;
  std::string_view complaint;
};

constexpr std::array wrong = {
    // A device pointer is no threadgroup pointer, and threadgroup memory no device memory.
    Wrong{"inline float first(threadgroup const float* x) { return x[0]; }\n"
          "kernel void k(device float* x [[buffer(0)]]) { x[0] = first(x); }",
          "no matching function"},
    Wrong{"kernel void k(device float* x [[buffer(0)]]) { TG_ARRAY(float, shared, 4); x = shared; }",
          "'__local float"},
    Wrong{
        "inline float first(thread const float* x) { return x[0]; }\n"
        "kernel void k(constant float* x [[buffer(0)]], device float* y [[buffer(1)]]) { y[0] = first(x); }",
        "no matching function"},
    // A template is looked into when it is instantiated.
    Wrong{"template <uint N> kernel void k(device float* x [[buffer(0)]]) { TG_ARRAY(float, shared, N); x = "
          "shared; }\n"
          "INSTANTIATE(\"k_4\", k<4>)",
          "'__local float"},
    Wrong{"kernel void k(device const float* x [[buffer(0)]]) { x[0] = 1.0f; }", "not assignable"},
    Wrong{"kernel void k(device float* x [[buffer(0)]]) { TG_ARRAY(float, shared, 8193); x[0] = shared[0]; }",
          "32 KiB"},
    Wrong{"kernel void k(device float* x [[buffer(0)]]) { threadgroup float shared[4]; x[0] = shared[0]; }",
          "local address space"},
    Wrong{"kernel void k(device ulong* x [[buffer(0)]]) { x[0] = simd_sum(x[1]); }", "no matching function"},
    Wrong{"kernel void k(device int* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[0] = min(x[1], "
          "i); }",
          "ambiguous"},
    Wrong{"kernel void k(device float* x [[buffer(0)]]) { x[0] = x[1] * 1.5; }", "double precision"},
    Wrong{"kernel void k(device float* x [[buffer(0)]]) { if constexpr (sizeof(*x) == 4) x[0] = 0.0f; }",
          "C++17"},
    Wrong{"kernel void k(device float* x [[buffer(0)]]) { uint half = 1; x[half] = 0.0f; }", "error"},
};

TEST(AddressSpaces, EachFaultIsSeen) {
  CALLA_REQUIRE_CLANG();
  EXPECT_EQ(kernel("kernel void k(device float* x [[buffer(0)]]) { x[0] = 1.0f; }"), "");
  for (const Wrong& fault : wrong)
    EXPECT_NE(kernel(fault.text).find(fault.complaint), std::string::npos) << fault.text << '\n'
                                                                           << kernel(fault.text);
}

}  // namespace
}  // namespace calla::test
