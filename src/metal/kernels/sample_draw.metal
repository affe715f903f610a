// The next token of a row, with any parameters: model/sampler.h.
//
//   one uniform number against the running sum of weights exp((x - max) / temperature), in the order of ids
//   where nothing is cut off, else in the order of probability
//
// Grid (rows), 512 threads. Reads peaks and sums of the groups, 16 to 47 KB a row of the 35B, and again the
// values of those few groups that matter, 256 B each: of about top_k of them. Only where more than 512 tokens
// are kept by rank the whole row is read, some twenty times. Weights are good to 2^-22, sums are exact: the
// token is the host's unless the number drawn is within 1e-6 of the border between two. Live floats a thread:
// about 40. Bound by latency, some 60 barriers.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/sample_arguments.h"
#include "metal/kernels/sample_block.h"
#include "metal/kernels/sample_draw.h"
#include "metal/kernels/sample_finish.h"
#include "metal/kernels/sample_random.h"
#include "metal/kernels/sample_rank.h"
#include "metal/kernels/sample_row.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

kernel void sample_draw(device const float* logits [[buffer(0)]],       // [slots][vocabulary]
                        device const Peak* peaks [[buffer(1)]],         // [slots][groups]
                        device const float* adjusted [[buffer(2)]],     // [slots][vocabulary]
                        device const float* group_peaks [[buffer(3)]],  // [slots][groups]
                        device const float* group_sums [[buffer(4)]],   // [slots][groups]
                        device const SlotSampling* sampling [[buffer(5)]],
                        device uint* counts [[buffer(6)]],  // [slots][vocabulary]
                        device SlotState* slots [[buffer(7)]],
                        device SampleRecord* records [[buffer(8)]],
                        constant SampleRows& rows [[buffer(9)]],
                        uint3 group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(uint, maxima, sample_simds);
  TG_ARRAY(ulong, sums, sample_simds);
  TG_ARRAY(ulong, found, 3);
  TG_ARRAY(ulong, list, list_size);
  TG_ARRAY(uint, row_keys, row_peaks);
  TG_ARRAY(atomic_uint, low, bins);
  TG_ARRAY(atomic_uint, high, bins);
  TG_ARRAY(atomic_uint, size, 1);
  const Block block{thread_index, simd, lane, maxima, sums, found};
  const Ranking ranking{list, low, high, size};
  const uint slot = rows.slots[group.x];
  device SampleRecord& record = records[rows.ring * rows.ring_stride + slot];
  const SlotState state = slots[slot];
  if (state.ended != 0) {
    if (thread_index == 0) record.flags = 0;
    return;
  }
  threadgroup_barrier(mem_flags::mem_device);  // all have read the state: one thread will change it

  device const SlotSampling& s = sampling[slot];
  Row row;
  row.peaks = row_keys;
  row.values = ((s.use & use_adjusted) != 0 ? adjusted : logits) + slot * vocabulary;
  row.count = s.vocabulary;
  if (is_scanned(s.use)) {
    load_peaks(row, group_peaks + slot * groups, block);
  } else {
    load_peaks(row, peaks + slot * groups, block);
  }
  const uint peak = peak_key(row, block);
  if (peak == fault_key) {
    if (thread_index == 0) finish_fault(slots[slot], record);
    return;
  }

  row.weights = Weights{key_value(peak), Scale{s.scale_high, s.scale_low}};
  const Share random = uniform_share(s.seed_low, s.seed_high, state.draws);
  const uint use = s.use;
  uint token = 0;
  if ((use & use_greedy) != 0) {
    token = most_probable(row, peak, block);
  } else if ((use & use_ranked) == 0) {
    token = draw_by_id(row, group_peaks + slot * groups, group_sums + slot * groups, random, block);
  } else {
    ulong all = 0;
    if ((use & use_sums) != 0)
      all = block_prefix(thread_mass(row, group_sums + slot * groups, block), block).total;
    token = draw_listed(row, s, all, random, ranking, block);
    if (token == no_token) token = draw_deep(row, s, random, ranking, block);
  }
  if (thread_index != 0) return;
  const float logit = logits[slot * vocabulary + token];
  const bool is_appended = finish_draw(token, logit, s, slots[slot], record);
  if (is_appended && (use & use_counts) != 0) counts[slot * vocabulary + token] += 1;
}
