#include "metal/kernel_sources.h"

#include <filesystem>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "metal/simulator/registry.h"
#include "support/support.h"

namespace calla::metal {
namespace {

std::set<std::string> files_of_kernels() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test::source("src/metal/kernels"))) {
    if (entry.path().extension() == ".metal") names.insert(entry.path().stem().string());
  }
  return names;
}

TEST(KernelSources, HaveEveryFile) {
  std::set<std::string> names;
  for (const KernelSource& source : kernel_sources()) names.emplace(source.name);
  EXPECT_EQ(names, files_of_kernels());
}

TEST(KernelSources, StandByThemselves) {
  for (const KernelSource& source : kernel_sources()) {
    SCOPED_TRACE(source.name);
    EXPECT_EQ(source.text.find("#include \""), std::string_view::npos);
    EXPECT_EQ(source.text.find("#pragma once"), std::string_view::npos);
    EXPECT_NE(source.text.find("#define TG_ARRAY"), std::string_view::npos);
    EXPECT_NE(source.text.find("#include <metal_stdlib>"), std::string_view::npos);
  }
}

/// A text whose kernels the simulator does not know, or the other way round, would be a kernel that no test
/// has run.
TEST(KernelSources, NameEveryKernelThatTheSimulatorRuns) {
  for (const std::string& kernel : simulation::kernel_names(demo, simulation::Build::checked)) {
    const bool simulators_own =
        kernel.starts_with("example_") || kernel.starts_with("broken_") || kernel.starts_with("right_");
    if (simulators_own) continue;
    bool named = false;
    for (const KernelSource& source : kernel_sources()) {
      named = named || source.text.find("\"" + kernel + "\"") != std::string_view::npos ||
              source.text.find("kernel void " + kernel + "(") != std::string_view::npos;
    }
    EXPECT_TRUE(named) << kernel;
  }
}

}  // namespace
}  // namespace calla::metal
