#include "metal/simulator/registry.h"

#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

namespace calla::metal::simulation {
namespace {

using Key = std::tuple<std::string, Build, std::string>;  // shape, build, kernel

std::map<Key, Kernel>& kernels() {
  static std::map<Key, Kernel> all;
  return all;
}

/// The name that a shape's kernels are registered under.
std::string key_of(const Shape& shape) {
  return same_model(shape, demo) ? "demo" : same_model(shape, qwen36_35b) ? "qwen36_35b" : "";
}

}  // namespace

Registration::Registration(const char* shape, Build build, const Kernel& kernel) {
  if (!kernels().emplace(Key{shape, build, kernel.name}, kernel).second) {
    throw std::logic_error(std::string("two kernels have the name ") + kernel.name);
  }
}

const Kernel* find_kernel(const Shape& shape, Build build, std::string_view name) {
  const auto found = kernels().find(Key{key_of(shape), build, std::string(name)});
  return found == kernels().end() ? nullptr : &found->second;
}

std::vector<std::string> kernel_names(const Shape& shape, Build build) {
  std::vector<std::string> names;
  for (const auto& [key, kernel] : kernels()) {
    if (std::get<0>(key) == key_of(shape) && std::get<1>(key) == build) names.push_back(std::get<2>(key));
  }
  return names;
}

}  // namespace calla::metal::simulation
