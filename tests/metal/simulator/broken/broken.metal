// Kernels with one fault each, and beside them what they should have been: what the simulator must find, and
// must not.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

// Reads one element too many.
kernel void broken_bounds(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                          uint i [[thread_position_in_grid]]) {
  y[i] = x[i] + x[i + 1];
}

// Reads what lies before its view.
kernel void broken_before(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                          uint i [[thread_position_in_grid]]) {
  y[i] = (x - 1)[i];
}

// Reads behind an array in threadgroup memory.
kernel void broken_array_bounds(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  TG_ARRAY(float, values, 32);
  values[i] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = values[i + 1];
}

// Uses an element behind the end of its own array.
kernel void broken_local_bounds(device const uint* x [[buffer(0)]], device float* y [[buffer(1)]],
                                uint i [[thread_position_in_grid]]) {
  float values[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  y[i] = values[x[i]];
}

// Writes through a pointer to const.
kernel void broken_const(device const float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  const_cast<device float*>(x)[i] = 1.0f;
}

// Loads four elements from a place that is a multiple of one.
kernel void broken_alignment(device const float* x [[buffer(0)]], device float4* y [[buffer(1)]],
                             uint i [[thread_position_in_grid]]) {
  y[i] = *reinterpret_cast<device const float4*>(x + 1 + 4 * i);
}

// Reads threadgroup memory that only some threads wrote.
template <bool BROKEN>
kernel void unwritten(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  TG_ARRAY(float, values, 32);
  if (!BROKEN || i < 31) values[i] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = values[31 - i];
}
INSTANTIATE("broken_unwritten", unwritten<true>)
INSTANTIATE("right_unwritten", unwritten<false>)

// Exchanges values in threadgroup memory: with nothing between, with a barrier for other memory, with the
// SIMD-group's only, with a SIMD function, and with the right one.
enum : uint { order_none, order_device, order_simdgroup, order_function, order_right };
template <uint ORDER>
kernel void exchange_values(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  TG_ARRAY(float, values, 64);
  values[i] = 1.0f;
  if (ORDER == order_device) threadgroup_barrier(mem_flags::mem_device);
  if (ORDER == order_simdgroup) simdgroup_barrier(mem_flags::mem_threadgroup);
  if (ORDER == order_function) values[i] += simd_sum(1.0f);
  if (ORDER == order_right) threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = values[63 - i];
}
INSTANTIATE("broken_exchange", exchange_values<order_none>)
INSTANTIATE("broken_exchange_device", exchange_values<order_device>)
INSTANTIATE("broken_exchange_simdgroup", exchange_values<order_simdgroup>)
INSTANTIATE("broken_exchange_function", exchange_values<order_function>)
INSTANTIATE("right_exchange", exchange_values<order_right>)

// The same among the lanes of each SIMD-group, for which its own barrier is enough.
template <bool BROKEN>
kernel void exchange_lanes(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  TG_ARRAY(float, values, 64);
  values[i] = 1.0f;
  if (!BROKEN) simdgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = values[i ^ 1U];
}
INSTANTIATE("broken_exchange_lanes", exchange_lanes<true>)
INSTANTIATE("right_exchange_lanes", exchange_lanes<false>)

// Writes over what others may not have read yet.
template <bool BROKEN>
kernel void overwrite(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  TG_ARRAY(float, values, 64);
  values[i] = 1.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint k = 0; k < 64; ++k) sum += values[k];
  if (!BROKEN) threadgroup_barrier(mem_flags::mem_threadgroup);
  values[i] = sum;
  y[i] = values[i];
}
INSTANTIATE("broken_overwrite", overwrite<true>)
INSTANTIATE("right_overwrite", overwrite<false>)

// Halves of a word, each of another thread: no race.
kernel void right_halves(device ushort* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  y[i] = ushort(i);
  y[i] = ushort(y[i] + 1);
}

// Every threadgroup writes the same place.
kernel void broken_groups(device uint* y [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                          uint lane [[thread_index_in_simdgroup]]) {
  if (lane == 0) y[0] = group.x;
}
kernel void right_groups(device atomic_uint* y [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  if (lane == 0) atomic_fetch_add_explicit(y, 1U, memory_order_relaxed);
}

// A barrier that half of the threads do not reach; SIMD functions of which each half of a SIMD-group calls
// another; one that a thread has left before.
kernel void broken_barrier(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]],
                           uint simd [[simdgroup_index_in_threadgroup]]) {
  if (simd == 0) threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = 1.0f;
}
kernel void broken_function(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i % 32 < 16) {
    y[i] = simd_sum(1.0f);
  } else {
    y[i] = simd_max(1.0f);
  }
}
kernel void broken_return(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i == 7) return;
  y[i] = simd_sum(1.0f);
}

// Takes a value from lane 32.
kernel void broken_lane(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  y[i] = simd_shuffle(1.0f, ushort(i % 32 + 1));
}

// 32 KiB and 16 bytes of threadgroup memory; 32 KiB.
template <uint COUNT>
kernel void memory(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  TG_ARRAY(float, values, COUNT);
  TG_ARRAY(float, more, 32);
  values[i] = 1.0f;
  more[i % 32] = 2.0f;
  y[i] = values[i] + more[i % 32];
}
INSTANTIATE("broken_memory", memory<8196 - 32>)
INSTANTIATE("right_memory", memory<8192 - 32>)

// Shifts by as many bits as a word has; converts a float that no unsigned integer holds.
kernel void broken_shift(device const uint* x [[buffer(0)]], device uint* y [[buffer(1)]],
                         uint i [[thread_position_in_grid]]) {
  y[i] = 1U << x[i];
}
kernel void broken_cast(device const float* x [[buffer(0)]], device uint* y [[buffer(1)]],
                        uint i [[thread_position_in_grid]]) {
  y[i] = uint(x[i]);
}

// y[i] = x[i]
kernel void right_copy(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                       uint i [[thread_position_in_grid]]) {
  y[i] = x[i];
}
