// What the program asks of a GPU that it has not met before it trusts it with a model: dispatches on small
// integers, a millisecond in all, whose results are exact and known.
#pragma once
#include <string>

#include "metal/device.h"
#include "model/shape.h"

namespace calla::metal {

/// Throws Error unless SIMD-groups and their matrices are as all kernels take them to be. There is no way
/// round.
void require_simd_groups(Device& device);

/// What becomes of a device's tensor units.
struct TensorUnits {
  bool used = false;
  std::string fault;  // why they are not, although there are some: one line
};

/// Whether all kernels for the tensor units can be compiled, and those of either tile multiply as they
/// should. `shape`: that which the device was opened for.
TensorUnits examine_tensor_units(Device& device, const Shape& shape);

/// The device for people, in one line.
std::string describe(const Device& device, const TensorUnits& units);

}  // namespace calla::metal
