// Writing the residual stream: h, u = h * gain of the next norm, and the sums of squares of each
// square_columns values of h, from which whoever reads u gets the norm's scale.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

enum : uint { stream_sums = uint(hidden) / square_columns };  // sums of squares of a row

/// The residual stream of the decode pass.
struct Stream {
  device float* h;            // [rows][hidden]
  device const float* gain;   // [hidden]
  device float* u;            // [rows][hidden]
  device float* square_sums;  // [rows][hidden / square_columns]
};

/// Adds `sum` to a column of a row, if `taken`. To be called by a whole SIMD-group of which eight
/// neighbouring lanes have eight neighbouring columns.
inline void add_to_stream(thread const Stream& stream, uint row, uint column, float sum, bool taken) {
  const uint place = row * hidden + column;
  float value = 0.0f;
  if (taken) {
    value = stream.h[place] + sum;
    stream.h[place] = value;
    stream.u[place] = value * stream.gain[column];
  }
  float squares = value * value;
#pragma clang loop unroll(full)
  for (uint distance = 1; distance < square_columns; distance *= 2)
    squares += simd_shuffle_xor(squares, distance);
  if (taken && column % square_columns == 0) stream.square_sums[place / square_columns] = squares;
}

/// Eight neighbouring columns of a thread's own, the quad-th and the next four of a row: writes u and the sum
/// of squares.
inline void write_norm_inputs(device float* u,
                              device float* square_sums,
                              device const float* gain,
                              uint row,
                              uint quad,
                              float4 low,
                              float4 high) {
  const float4 gain_low = ((device const float4*)gain)[quad];
  const float4 gain_high = ((device const float4*)gain)[quad + 1];
  device float4* to = (device float4*)u + row * (hidden / 4) + quad;
  to[0] = low * gain_low;
  to[1] = high * gain_high;
  const float4 squares = fma(high, high, low * low);
  square_sums[row * stream_sums + quad / 2] = (squares.x + squares.y) + (squares.z + squares.w);
}

}  // namespace calla_kernels
