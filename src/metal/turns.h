// RoPE's angles, which kernels cannot compute well enough.
#pragma once
#include <cstddef>
#include <memory>

#include "metal/device.h"

namespace calla::metal {

std::size_t turns_bytes(int context);

/// float2 [context][32]: cosine and sine of position * theta^(-j / 32), computed in double.
std::unique_ptr<Buffer> make_turns(Device& device, int context);

}  // namespace calla::metal
