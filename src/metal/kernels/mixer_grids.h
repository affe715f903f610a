// Threads and threadgroups of the decode kernels of the mixers, for the host and the kernels.
//
//   delta_step         grid (delta_value_heads * delta_blocks, rows)
//   attention_step     grid (1, attention_heads / queries_per_group, rows)
//   attention_split    grid (args.splits, attention_heads / queries_per_group, rows)
//   attention_combine  grid (attention_heads, rows)
#pragma once

namespace calla_kernels {

enum : unsigned {
  delta_step_threads = 32,
  attention_step_threads = 256,  // of attention_split too
  attention_combine_threads = 256,
  queries_per_group = 4,  // query heads of one KV head that share what a threadgroup reads of it
};

}  // namespace calla_kernels
