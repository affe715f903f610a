// The last product of a layer's mixer, added to the residual stream.
//
//   h += W (mixed * scale),  u = h * gain,  square_sums = sums of h^2 over 8 columns each
//
// attention_out has no scale; that of delta_out is 1 / sqrt(mean o^2 + 1e-6) of each head, whose sum of o^2
// comes in delta_blocks parts. It multiplies a chunk's part of the result: a chunk lies in one head.
//
// 128 threads, two rows of W a SIMD-group, 8 columns of h a threadgroup; R rows of h. Float32 throughout.
// Moves the weights once (35B: 4.7 MB), four times as much of `mixed` from caches for each row. Live floats a
// thread: 35 of R = 1, 85 of R = 4. Bound by memory.
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/decode_grids.h"
#include "metal/kernels/decode_product.h"
#include "metal/kernels/residual.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

enum : uint {
  simd_rows = uint(mixer_out_rows) / (mixer_out_threads / 32),
  head_chunks = uint(delta_dim) / Codes<4>::chunk_columns,
};
static_assert(mixer_out_rows == uint(square_columns), "a threadgroup has the columns of one sum of squares");
static_assert(delta_value_heads <= 32, "a lane has the scale of one head");
static_assert(Row<4, delta_value_dim>::chunks % 32 == 0, "each lane has a chunk of every step");

/// Adds the threadgroup's results to its columns of h. results: mixer_out_rows * R floats.
template <uint R>
static inline void finish(thread Sums<simd_rows, R>& sums,
                          threadgroup float* results,
                          thread const Stream& stream,
                          uint first,
                          uint simd,
                          uint lane) {
  add_lanes(sums);
  if (lane == 0) {
#pragma clang loop unroll(full)
    for (uint r = 0; r < R; ++r)
#pragma clang loop unroll(full)
      for (uint i = 0; i < simd_rows; ++i) results[r * mixer_out_rows + simd * simd_rows + i] = sums.of[i][r];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simd != 0) return;
  const bool taken = lane < mixer_out_rows * R;
  add_to_stream(stream, lane / mixer_out_rows, first + lane % mixer_out_rows, taken ? results[lane] : 0.0f,
                taken);
}

template <uint R>
kernel void delta_out(device const uint4* words [[buffer(0)]],  // [hidden][delta_value_dim / 32]
                      device const ushort* scales [[buffer(1)]],
                      device const ushort* biases [[buffer(2)]],
                      device const float* mixed [[buffer(3)]],      // [R][delta_value_dim]
                      device const float* head_sums [[buffer(4)]],  // [R][heads][delta_blocks]
                      device float* h [[buffer(5)]],                // [R][hidden]
                      device const float* gain [[buffer(6)]],
                      device float* u [[buffer(7)]],            // [R][hidden]
                      device float* square_sums [[buffer(8)]],  // [R][hidden / square_columns]
                      uint3 threadgroup_index [[threadgroup_position_in_grid]],
                      uint simd [[simdgroup_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, results, uint(mixer_out_rows) * R);
  const uint first = threadgroup_index.x * mixer_out_rows;
  const uint row = first + simd * simd_rows;
  const Matrix matrix = {words, scales, biases};

  float head_scales[R];
#pragma clang loop unroll(full)
  for (uint r = 0; r < R; ++r) {
    const uint head = min(lane, uint(delta_value_heads) - 1);
    device const float4* parts =
        (device const float4*)head_sums + (r * delta_value_heads + head) * (delta_blocks / 4);
    float sum = 0.0f;
#pragma clang loop unroll(full)
    for (uint i = 0; i < delta_blocks / 4; ++i) sum += sum_of(parts[i]);
    head_scales[r] = precise::rsqrt(sum / float(delta_dim) + 1e-6f);
  }

  Sums<simd_rows, R> sums;
  clear(sums);
#pragma clang loop unroll(full)
  for (uint step = 0; step < Row<4, delta_value_dim>::chunks; step += 32) {
    const uint index = step + lane;
    Chunk<simd_rows> chunk;
#pragma clang loop unroll(full)
    for (uint i = 0; i < simd_rows; ++i) load<4, delta_value_dim>(chunk, i, matrix, row + i, index);
    Sums<simd_rows, R> parts;
    multiply<4, delta_value_dim>(parts, chunk, mixed, index);
#pragma clang loop unroll(full)
    for (uint r = 0; r < R; ++r) {
      const float scale = simd_shuffle(head_scales[r], ushort(index / head_chunks));
#pragma clang loop unroll(full)
      for (uint i = 0; i < simd_rows; ++i) sums.of[i][r] = fma(scale, parts.of[i][r], sums.of[i][r]);
    }
  }
  finish<R>(sums, results, Stream{h, gain, u, square_sums}, first, simd, lane);
}
INSTANTIATE("delta_out_1", delta_out<1>)
INSTANTIATE("delta_out_2", delta_out<2>)
INSTANTIATE("delta_out_4", delta_out<4>)

template <uint R>
kernel void attention_out(device const uint4* words [[buffer(0)]],  // [hidden][attention_dim / 32]
                          device const ushort* scales [[buffer(1)]],
                          device const ushort* biases [[buffer(2)]],
                          device const float* mixed [[buffer(3)]],  // [R][attention_dim]
                          device float* h [[buffer(4)]],            // [R][hidden]
                          device const float* gain [[buffer(5)]],
                          device float* u [[buffer(6)]],            // [R][hidden]
                          device float* square_sums [[buffer(7)]],  // [R][hidden / square_columns]
                          uint3 threadgroup_index [[threadgroup_position_in_grid]],
                          uint simd [[simdgroup_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, results, uint(mixer_out_rows) * R);
  const uint first = threadgroup_index.x * mixer_out_rows;
  const Matrix matrix = {words, scales, biases};
  Sums<simd_rows, R> sums;
  clear(sums);
  add_product<4, attention_dim, 32>(sums, matrix, first + simd * simd_rows, mixed, lane);
  finish<R>(sums, results, Stream{h, gain, u, square_sums}, first, simd, lane);
}
INSTANTIATE("attention_out_1", attention_out<1>)
INSTANTIATE("attention_out_2", attention_out<2>)
INSTANTIATE("attention_out_4", attention_out<4>)
