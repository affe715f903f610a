// Where the residual stream of a decode pass begins.
//
//   embed:     h = embedding[token],  u = h * gain,  square_sums = sums of h^2 over 8 columns each
//   last_row:  the same of a row of h that is there already
//
// 32 threads, 8 columns each; grids in decode_grids.h. Weights are rounded once, as all who read the
// checkpoint round them. Rows of slots that take no step get zeros. A row of the 35B moves 1.2 KB of weights
// and 25 KB of the stream; live floats a thread: 24. Bound by latency alone.
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/decode_grids.h"
#include "metal/kernels/residual.h"
#include "metal/kernels/shape.h"
#include "metal/kernels/slots.h"

using namespace metal;
using namespace calla_kernels;

static_assert(embed_columns == 8 * uint(embed_threads) && square_columns == 8, "a thread has eight columns");

kernel void embed(device const uint* words [[buffer(0)]],  // [vocabulary][hidden / 8]
                  device const ushort* scales [[buffer(1)]],
                  device const ushort* biases [[buffer(2)]],
                  device const SlotState* slots [[buffer(3)]],
                  device const float* gain [[buffer(4)]],  // of the first layer's norm
                  device float* h [[buffer(5)]],           // [rows][hidden]
                  device float* u [[buffer(6)]],
                  device float* square_sums [[buffer(7)]],  // [rows][hidden / square_columns]
                  constant StepRows& rows [[buffer(8)]],
                  uint3 threadgroup_index [[threadgroup_position_in_grid]],
                  uint thread_index [[thread_index_in_threadgroup]]) {
  const uint row = threadgroup_index.y;
  const uint slot = rows.slots[row];
  const uint word = threadgroup_index.x * embed_threads + thread_index;  // of the row
  float4 low = float4(0.0f);
  float4 high = float4(0.0f);
  if (is_live(slot, slots)) {
    const uint token = slots[slot].token;
    const uint codes = words[token * (hidden / 8) + word];
    const uint place = token * (hidden / group) + word / (group / 8);
    const float scale = bf16_to_float(scales[place]);
    const float bias = bf16_to_float(biases[place]);
    low = dequantised(codes, scale, bias);
    high = dequantised(codes >> 16, scale, bias);
  }
  device float4* to = (device float4*)h + row * (hidden / 4) + 2 * word;
  to[0] = low;
  to[1] = high;
  write_norm_inputs(u, square_sums, gain, row, 2 * word, low, high);
}

kernel void last_row(device const float4* h [[buffer(0)]],     // [..][hidden]
                     device const float* gain [[buffer(1)]],   // of the final norm
                     device float* u [[buffer(2)]],            // [hidden]
                     device float* square_sums [[buffer(3)]],  // [hidden / square_columns]
                     constant uint& row [[buffer(4)]],
                     uint3 threadgroup_index [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]]) {
  const uint quad = 2 * (threadgroup_index.x * embed_threads + thread_index);
  const uint place = row * (hidden / 4) + quad;
  write_norm_inputs(u, square_sums, gain, 0, quad, h[place], h[place + 1]);
}
