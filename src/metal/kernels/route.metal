// Where each row of prefill goes in the mixture of experts, and the order in which the experts take them.
#include <metal_stdlib>

#include "metal/kernels/activations.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/kernels/shape.h"

using namespace metal;
using namespace calla_kernels;

namespace {

enum : uint {
  lane_experts = experts / 32,  // logits of a lane
  chunk_tokens = 512,           // whose experts the sort knows at a time
  chunk_words = chunk_tokens / 32,
  chunk_bits = chunk_words * uint(experts),  // words of them, [chunk_words][experts]
};

}  // namespace

// The eight largest router logits of a row, ties to the lower id, their shares exp(l - max) / sum in float32,
// and the shared expert's share sigmoid(its logit).
//
// Grid (ceil(T / 4)), 128 threads: a SIMD-group a row, which takes the largest eight times. The ids are
// distinct and within the experts whatever the logits are. Moves 1.1 KB a row. Live floats a thread: 8 logits
// and 4. Bound by latency: eight rounds of two SIMD-group reductions.
kernel void route(device const float* logits [[buffer(0)]],  // [T][experts + 1], the shared expert's last
                  device Route* routes [[buffer(1)]],        // [T]
                  constant RowsArguments& args [[buffer(2)]],
                  uint3 at [[threadgroup_position_in_grid]],
                  uint simd [[simdgroup_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
  const float no_logit = -1e30f;  // of what is no number, or less
  const float taken = -2e30f;
  const uint row = at.x * route_rows + simd;
  if (row >= args.rows) return;
  device const float* from = logits + row * (experts + 1);
  float values[lane_experts];
  for (uint i = 0; i < lane_experts; ++i) {
    const float value = from[32 * i + lane];
    values[i] = value > no_logit ? value : no_logit;
  }

  float largest = no_logit;  // of all
  float logit = no_logit;    // lane i: the i-th largest
  uint expert = 0;
  for (uint round = 0; round < experts_per_token; ++round) {
    float best = values[0];
    for (uint i = 1; i < lane_experts; ++i) best = fmax(best, values[i]);
    const float peak = simd_max(best);
    uint id = experts;
    for (uint i = lane_experts; i-- > 0;) id = values[i] == peak ? 32 * i + lane : id;
    id = simd_min(id);
    for (uint i = 0; i < lane_experts; ++i) values[i] = 32 * i + lane == id ? taken : values[i];
    if (round == 0) largest = peak;
    if (round == lane) {
      logit = peak;
      expert = id;
    }
  }

  const float weight = lane < experts_per_token ? precise::exp(logit - largest) : 0.0f;
  const float share = weight / simd_sum(weight);
  if (lane < experts_per_token) {
    routes[row].expert[lane] = expert;
    routes[row].share[lane] = share;
  }
  if (lane == 0) routes[row].shared = sigmoid(from[experts]);
}

// The pairs (token, i-th expert of it) by expert, and within one by token: pairs[s] = token * 8 + i. And the
// blocks of at most args.tile neighbours of one expert, without rows from the last one on.
//
// One threadgroup of 1,024 threads, a token each: counts by atomics, a scan by one SIMD-group, and then, 512
// tokens at a time, a bit for each token in the word of its expert: a pair's rank is the number of bits below
// its own. Nothing depends on the order of the threads. 18.4 KB of threadgroup memory. Moves 64 bytes a row.
// Live values a thread: 8 ids. Bound by latency, about 30 threadgroup barriers and loads.
kernel void sort_pairs(device const Route* routes [[buffer(0)]],  // [T]
                       device uint* pairs [[buffer(1)]],          // [8 T]
                       device Block* blocks [[buffer(2)]],        // [args.blocks]
                       constant SortArguments& args [[buffer(3)]],
                       uint thread_index [[thread_index_in_threadgroup]],
                       uint simd [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(atomic_uint, counts, experts);
  TG_ARRAY(uint, starts, experts);      // the place of an expert's next pair
  TG_ARRAY(uint, block_ends, experts);  // the number of blocks up to an expert's last
  TG_ARRAY(atomic_uint, bits, chunk_bits);
  const uint token = thread_index;
  const bool routed = token < args.rows;
  uint ids[experts_per_token];
  for (uint i = 0; i < experts_per_token; ++i) ids[i] = routed ? routes[token].expert[i] : 0;

  for (uint e = thread_index; e < experts; e += sort_threads)
    atomic_store_explicit(&counts[e], 0U, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (routed) {
    for (uint i = 0; i < experts_per_token; ++i)
      atomic_fetch_add_explicit(&counts[ids[i]], 1U, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (simd == 0) {
    uint rows = 0;
    uint tiles = 0;
    for (uint i = 0; i < lane_experts; ++i) {
      const uint count = atomic_load_explicit(&counts[lane * lane_experts + i], memory_order_relaxed);
      rows += count;
      tiles += (count + args.tile - 1) / args.tile;
    }
    rows = simd_prefix_exclusive_sum(rows);
    tiles = simd_prefix_exclusive_sum(tiles);
    for (uint i = 0; i < lane_experts; ++i) {
      const uint e = lane * lane_experts + i;
      const uint count = atomic_load_explicit(&counts[e], memory_order_relaxed);
      starts[e] = rows;
      rows += count;
      tiles += (count + args.tile - 1) / args.tile;
      block_ends[e] = tiles;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  if (thread_index < experts) {
    const uint count = atomic_load_explicit(&counts[thread_index], memory_order_relaxed);
    uint block = block_ends[thread_index] - (count + args.tile - 1) / args.tile;
    for (uint done = 0; done < count; done += args.tile) {
      const Block next = {thread_index, starts[thread_index] + done, min(args.tile, count - done)};
      blocks[block++] = next;
    }
  }
  for (uint block = block_ends[experts - 1] + thread_index; block < args.blocks; block += sort_threads) {
    const Block none = {0, 0, 0};
    blocks[block] = none;
  }

  for (uint chunk = 0; chunk < args.rows; chunk += chunk_tokens) {
    for (uint i = thread_index; i < chunk_bits; i += sort_threads)
      atomic_store_explicit(&bits[i], 0U, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const bool here = routed && token >= chunk && token < chunk + chunk_tokens;
    const uint own_word = (token - chunk) / 32;
    const uint own_bit = 1U << (token % 32);
    if (here) {
      for (uint i = 0; i < experts_per_token; ++i)
        atomic_fetch_or_explicit(&bits[own_word * experts + ids[i]], own_bit, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (here) {
      for (uint i = 0; i < experts_per_token; ++i) {
        uint place = starts[ids[i]];
        for (uint w = 0; w < own_word; ++w)
          place += popcount(atomic_load_explicit(&bits[w * experts + ids[i]], memory_order_relaxed));
        const uint word = atomic_load_explicit(&bits[own_word * experts + ids[i]], memory_order_relaxed);
        pairs[place + popcount(word & (own_bit - 1))] = token * experts_per_token + i;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index < experts) {
      uint passed = 0;
      for (uint w = 0; w < chunk_words; ++w)
        passed += popcount(atomic_load_explicit(&bits[w * experts + thread_index], memory_order_relaxed));
      starts[thread_index] += passed;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
