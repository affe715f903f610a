// What an Apple GPU can do at most, measured: speeds mean something only beside these.
#pragma once
#include "metal/device.h"

namespace calla::metal {

/// Bytes a second that it reads from memory.
double read_bandwidth(Device& device);
/// Operations a second, two a multiply-add, in float products of 8 x 8 x 8 (simdgroup_matrix).
double product_peak(Device& device);

}  // namespace calla::metal
