#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

#include "metal/simulator/registry.h"

namespace calla::metal::simulation {
namespace {

using Key = std::tuple<std::string, bool, std::string>;  // shape, checked, kernel

std::map<Key, Kernel>& kernels() {
  static std::map<Key, Kernel> all;
  return all;
}

}  // namespace

Registration::Registration(const char* shape, bool checked, const Kernel& kernel) {
  if (!kernels().emplace(Key{shape, checked, kernel.name}, kernel).second) {
    throw std::logic_error(std::string("two kernels have the name ") + kernel.name);
  }
}

const Kernel* find_kernel(const Shape& shape, bool checked, std::string_view name) {
  const std::string known = same_model(shape, demo)         ? "demo"
                            : same_model(shape, qwen36_35b) ? "qwen36_35b"
                                                            : "none";
  const auto found = kernels().find(Key{known, checked, std::string(name)});
  return found == kernels().end() ? nullptr : &found->second;
}

}  // namespace calla::metal::simulation
