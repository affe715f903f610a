// The kernels that were compiled into the tests.
#pragma once
#include <string_view>

#include "metal/simulator/machine.h"
#include "model/shape.h"

namespace calla::metal::simulation {

/// The kernel of this name. Null where there is none for the shape.
const Kernel* find_kernel(const Shape& shape, bool checked, std::string_view name);

}  // namespace calla::metal::simulation
