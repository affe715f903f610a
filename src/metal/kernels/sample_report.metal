// What the log-probabilities of a row are made of; those of the model itself, before all parameters.
//
//   peak = max logit, mass = sum of exp(logit - peak), and the most probable tokens with their logits
//
// Grid (rows), 512 threads, beside sample_draw. Reads peaks and sums of the groups, 47 KB a row of the 35B,
// and again the logits of about as many groups as there are alternatives. The mass is good to 2^-22; the host
// takes the logarithm, in double. Live floats a thread: about 25. Bound by latency, some 25 barriers.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/sample_arguments.h"
#include "metal/kernels/sample_block.h"
#include "metal/kernels/sample_rank.h"
#include "metal/kernels/sample_row.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

kernel void sample_report(device const float* logits [[buffer(0)]],    // [slots][vocabulary]
                          device const Peak* peaks [[buffer(1)]],      // [slots][groups]
                          device const float* raw_sums [[buffer(2)]],  // [slots][groups]
                          device const SlotSampling* sampling [[buffer(3)]],
                          device SampleReport* reports [[buffer(4)]],
                          constant SampleRows& rows [[buffer(5)]],
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
  device SampleReport& report = reports[rows.ring * rows.ring_stride + slot];

  Row row;
  row.peaks = row_keys;
  row.values = logits + slot * vocabulary;
  row.count = vocabulary;
  load_peaks(row, peaks + slot * groups, block);
  bool is_fault = false;
  for (uint i = thread_index; i < groups; i += sample_threads)
    is_fault = is_fault || !is_finite(raw_sums[slot * groups + i]);
  const uint peak = max(peak_key(row, block), block_max(is_fault ? fault_key : 0U, block));
  if (peak == fault_key) return;  // sample_draw says so

  row.weights = Weights{key_value(peak), natural_scale()};
  const ulong mass = block_prefix(thread_mass(row, raw_sums + slot * groups, block), block).total;
  if (thread_index == 0) {
    report.peak = row.weights.peak;
    report.mass_low = uint(mass);
    report.mass_high = uint(mass >> 32);
  }
  const uint alternatives = sampling[slot].alternatives;
  if (alternatives == 0) return;
  rank_largest(row, alternatives, ranking, block);
  if (thread_index < alternatives) {
    const ulong entry = list[thread_index];
    report.alternative[thread_index] = TokenLogit{entry_token(entry), key_value(entry_key(entry))};
  }
}
