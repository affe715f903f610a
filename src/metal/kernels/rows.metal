// Rows of the residual stream in prefill: a threadgroup of 256 threads a row, grid (T).
//
//   embed_rows  h = the token's row of the embedding, scale * code + bias rounded once
//   norm_rows   x = h * rsqrt(mean h^2 + 1e-6) * gain, the sum in float32
//
// embed_rows moves 4.6 bytes a column, norm_rows 8: bound by memory, or by the caches that hold h. Live
// floats a thread: 8 values.
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/bfloat16.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/row_norm.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

kernel void embed_rows(device const uint* words [[buffer(0)]],  // [vocabulary][hidden / 8]
                       device const ushort* scales [[buffer(1)]],
                       device const ushort* biases [[buffer(2)]],
                       device const uint* tokens [[buffer(3)]],  // [T]
                       device float4* h [[buffer(4)]],           // [T][hidden]
                       uint3 at [[threadgroup_position_in_grid]],
                       uint thread_index [[thread_index_in_threadgroup]]) {
  const uint token = tokens[at.x];
  device float4* out = h + at.x * row_quads;
  for (uint i = thread_index; i < hidden / 8; i += row_threads) {
    const uint place = token * (hidden / group) + i / (group / 8);
    const float scale = bf16_to_float(scales[place]);
    const float bias = bf16_to_float(biases[place]);
    const uint word = words[token * (hidden / 8) + i];
    out[2 * i] = dequantised(word, scale, bias);
    out[2 * i + 1] = dequantised(word >> 16, scale, bias);
  }
}

kernel void norm_rows(device const float4* h [[buffer(0)]],     // [T][hidden]
                      device const float4* gain [[buffer(1)]],  // [hidden]
                      device float4* x [[buffer(2)]],           // [T][hidden]
                      uint3 at [[threadgroup_position_in_grid]],
                      uint thread_index [[thread_index_in_threadgroup]],
                      uint simd [[simdgroup_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, sums, row_simds);
  device const float4* row = h + at.x * row_quads;
  float squares = 0.0f;
  for (uint i = thread_index; i < row_quads; i += row_threads) squares += dot(row[i], row[i]);
  const float scale = row_scale(squares, sums, simd, lane);
  for (uint i = thread_index; i < row_quads; i += row_threads)
    x[at.x * row_quads + i] = row[i] * scale * gain[i];
}
