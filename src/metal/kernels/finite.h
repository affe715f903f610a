// Numbers that a logit must be.
#pragma once
#include <metal_stdlib>

using namespace metal;

namespace calla_kernels {

inline bool is_finite(float value) { return (as_type<uint>(value) & 0x7f800000U) != 0x7f800000U; }

}  // namespace calla_kernels
