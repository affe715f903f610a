// The kernels' source as the program carries it, for a GPU's driver to compile.
#pragma once
#include <span>
#include <string_view>

namespace calla::metal {

/// A file of kernels in one text: with the headers of ours that it includes, and the definitions of what the
/// kernels are written with beside the language, TG_ARRAY and INSTANTIATE.
struct KernelSource {
  std::string_view name;  // of the file, without its folder and .metal
  std::string_view text;
};

std::span<const KernelSource> kernel_sources();

}  // namespace calla::metal
