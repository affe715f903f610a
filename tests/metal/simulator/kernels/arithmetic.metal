// What arithmetic gives, for the tests of how exact it is.
#include <metal_stdlib>

using namespace metal;

// y[9 * i + k] = the k-th function of x[i].
kernel void example_functions(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                              uint i [[thread_position_in_grid]]) {
  const float value = x[i];
  device float* out = y + 9 * i;
  out[0] = precise::exp(value);
  out[1] = precise::log(value);
  out[2] = precise::rsqrt(value);
  out[3] = fast::exp2(value);
  out[4] = fast::exp2(-value);
  out[5] = fast::log(value);
  out[6] = fast::rsqrt(value);
  out[7] = fast::divide(value, 3.0f);
  out[8] = fast::cos(value);
}

// y[i] = x[i]^2 - 1, in one rounding or in two.
kernel void example_product(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                            uint i [[thread_position_in_grid]]) {
  y[i] = x[i] * x[i] - 1.0f;
}
