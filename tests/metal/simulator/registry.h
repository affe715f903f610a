// The kernels that were compiled into the tests.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "metal/simulator/machine.h"
#include "model/shape.h"

namespace calla::metal::simulation {

/// The kernel of this name. Null where there is none for the shape.
const Kernel* find_kernel(const Shape& shape, Build build, std::string_view name);
/// The names of all there are.
std::vector<std::string> kernel_names(const Shape& shape, Build build);

}  // namespace calla::metal::simulation
