// Where the keys and values of a slot lie: in pages of page_positions positions, spread over kv_slabs
// buffers. A page holds [attention layer][KV head][keys, values][256 positions][256 dims] in bfloat16; the
// page table has the ids of a slot's pages in the order of positions, and page p is the (p %
// pages_per_slab)-th of slab p / pages_per_slab.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/shape.h"

namespace calla_kernels {

enum : uint { kv_keys = 0, kv_values = 1 };

/// The rows [256 positions][256 dims] of one page, layer and KV head: keys or values. Pointer is `device
/// ushort*` or `device const ushort*`; Arguments has the layer and the extents (AttentionArguments).
template <class Pointer, class Arguments>
inline Pointer kv_rows(Pointer slab0,
                       Pointer slab1,
                       Pointer slab2,
                       Pointer slab3,
                       constant Arguments& args,
                       uint page,
                       uint kv_head,
                       uint keys_or_values) {
  const uint slab = page / args.pages_per_slab;
  const Pointer low = slab == 0 ? slab0 : slab1;
  const Pointer high = slab == 2 ? slab2 : slab3;
  const uint within = ((args.layer * kv_heads + kv_head) * 2 + keys_or_values) * page_positions * head_dim;
  // A slab may have more than 2^32 values.
  return (slab < 2 ? low : high) + size_t(page % args.pages_per_slab) * args.page_stride + within;
}

}  // namespace calla_kernels
