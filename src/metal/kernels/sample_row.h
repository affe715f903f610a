// What a threadgroup draws from: a row's values and the peaks of its groups.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/sample_rank.h"

using namespace metal;

namespace calla_kernels {

constant uint fault_key = 0xffffffffU;  // above that of any finite value

/// The largest key of the tokens that a cut leaves of its group. For all lanes of a SIMD-group.
inline uint cut_peak(device const float* values, uint count, uint lane) {
  const uint token = count / head_rows * head_rows + lane;
  const uint low = token < count ? order_key(values[token]) : 0U;
  const uint high = token + 32 < count ? order_key(values[token + 32]) : 0U;
  return simd_max(max(low, high));
}

/// The key of a group's peak; 0 where none of its tokens may be drawn.
inline uint group_key(float peak, uint group, uint count) {
  if (!is_finite(peak)) return fault_key;
  return group * head_rows < count ? order_key(peak) : 0U;
}

/// Sets the peaks to those of the model's own logits. A group that has a logit which is not finite has such a
/// peak.
inline void load_peaks(thread Row& row, device const Peak* peaks, thread const Block& block) {
  const bool is_cut = row.count % head_rows != 0;
  const uint cut = is_cut ? cut_peak(row.values, row.count, block.lane) : 0U;
  for (uint group = block.thread_index; group < row_peaks; group += sample_threads) {
    uint key = group < groups ? group_key(peaks[group].logit, group, row.count) : 0U;
    if (is_cut && group == row.count / head_rows && key != fault_key) key = cut;
    row.peaks[group] = key;
  }
}

/// The same, of those that sample_scan has written.
inline void load_peaks(thread Row& row, device const float* peaks, thread const Block& block) {
  for (uint group = block.thread_index; group < row_peaks; group += sample_threads)
    row.peaks[group] = group < groups ? group_key(peaks[group], group, row.count) : 0U;
}

/// The key of the largest value, or fault_key.
inline uint peak_key(thread const Row& row, thread const Block& block) {
  uint key = 0;
  for (uint group = block.thread_index; group < groups; group += sample_threads)
    key = max(key, row.peaks[group]);
  return block_max(key, block);
}

/// The weights of a group's tokens together, by its peak and the sum of the weights relative to it.
inline ulong group_mass(float peak, float sum, Weights weights) {
  return mass_of(sum * weight(peak - weights.peak, weights.scale));
}

/// Those of all of a thread's groups.
inline ulong thread_mass(thread const Row& row, device const float* sums, thread const Block& block) {
  ulong mass = 0;
  for (uint group = block.thread_index; group < groups; group += sample_threads) {
    if (row.peaks[group] != 0) mass += group_mass(key_value(row.peaks[group]), sums[group], row.weights);
  }
  return mass;
}

}  // namespace calla_kernels
