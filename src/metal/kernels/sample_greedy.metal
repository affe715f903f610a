// The most probable token of rows that want nothing else.
//
//   token = argmax over id < vocabulary of logit, the lowest id among equals
//
// Grid (rows), 512 threads. Reads the peaks [vocabulary / 64] that the head has left, and the logits of the
// one group that the end of the vocabulary cuts: 31 KB a row of the 35B. Live floats a thread: about 10.
// Bound by latency.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/sample_arguments.h"
#include "metal/kernels/sample_block.h"
#include "metal/kernels/sample_finish.h"
#include "metal/kernels/sample_row.h"
#include "metal/kernels/sample_values.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

/// The better one of an entry and a token, whose key is that of a fault where its value is not finite.
inline ulong better(ulong best, float value, uint token) {
  return max(best, entry_of(is_finite(value) ? order_key(value) : fault_key, token));
}

kernel void sample_greedy(device const float* logits [[buffer(0)]],  // [slots][vocabulary]
                          device const Peak* peaks [[buffer(1)]],    // [slots][groups]
                          device const SlotSampling* sampling [[buffer(2)]],
                          device SlotState* slots [[buffer(3)]],
                          device SampleRecord* records [[buffer(4)]],
                          constant SampleRows& rows [[buffer(5)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]],
                          uint simd [[simdgroup_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(uint, maxima, sample_simds);
  TG_ARRAY(ulong, sums, sample_simds);
  TG_ARRAY(ulong, found, 3);
  const Block block{thread_index, simd, lane, maxima, sums, found};
  const uint slot = rows.slots[group.x];
  device SampleRecord& record = records[rows.ring * rows.ring_stride + slot];
  if (slots[slot].ended != 0) {
    if (thread_index == 0) record.flags = 0;
    return;
  }
  threadgroup_barrier(mem_flags::mem_device);  // all have read the state: one thread will change it

  device const float* values = logits + slot * vocabulary;
  const uint count = sampling[slot].vocabulary;
  const uint whole = count / head_rows;
  ulong best = 0;
  for (uint i = thread_index; i < groups; i += sample_threads) {
    const Peak peak = peaks[slot * groups + i];
    if (i < whole || !is_finite(peak.logit)) best = better(best, peak.logit, peak.token);
  }
  const uint token = whole * head_rows + thread_index;
  if (thread_index < head_rows && token < count) best = better(best, values[token], token);

  const uint key = block_max(entry_key(best), block);
  const uint low = block_max(entry_key(best) == key ? uint(best) & token_mask : 0U, block);
  if (thread_index != 0) return;
  if (key == fault_key) {
    finish_fault(slots[slot], record);
  } else {
    const uint chosen = token_mask - low;
    finish_draw(chosen, values[chosen], sampling[slot], slots[slot], record);
  }
}
