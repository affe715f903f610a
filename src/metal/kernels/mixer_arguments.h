// Threads, threadgroups and constants of the prefill kernels of the mixers, for the host and the kernels. All
// of them work on `tokens` tokens of one slot.
//
//   delta_prepare      grid ((delta_key_heads + delta_value_heads) / 4, ceil(tokens / delta_prepare_tokens))
//   delta_window       grid (channels / 4 / delta_window_threads)            behind delta_prepare
//   delta_scan         grid (delta_value_heads * delta_blocks / 2)           behind delta_prepare
//   delta_gate         grid (delta_value_heads / 4, tokens)                  behind delta_scan
//   attention_prepare  grid ((attention_heads + 2 * kv_heads) / 2, tokens)
//   attention_prefill  grid (ceil(tokens / attention_tile_tokens), kv_heads) behind attention_prepare
#pragma once

namespace calla_kernels {

enum : unsigned {
  delta_prepare_threads = 128,
  delta_prepare_tokens = 8,  // that a SIMD-group takes one after the other
  delta_window_threads = 128,
  delta_scan_threads = 64,
  delta_gate_threads = 128,
  attention_prepare_threads = 64,
  attention_prefill_threads = 256,
  attention_tile_tokens = 4,
};

struct DeltaPrefillArguments {
  unsigned tokens;
  unsigned position;  // of the first token
};

struct AttentionPrefillArguments {
  unsigned tokens;
  unsigned position;        // of the first token
  unsigned layer;           // of the attention layers
  unsigned pages_per_slab;  // as in AttentionArguments
  unsigned page_stride;
};

}  // namespace calla_kernels
