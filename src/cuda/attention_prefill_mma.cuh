// Second kernel of attention prefill, for every GPU from Ampere on: causal attention with an online softmax.
//
// A block has 16 tokens and the eight query heads of a KV head, so that a tile of keys serves 128 rows; a
// warp has a head, 16 rows x 256 accumulators. Per tile of keys: S = Q K^T, p = 2^((s - max) log2(e) / 16), O
// = O 2^.. + P V; at last y = O / sum p * sigmoid(gate). Q, K, V and P are bfloat16, everything else float.
// The next keys arrive while P V is computed, the values while Q K^T is.
// Bound: 0.55 TFLOP of matrix products for 8,192 tokens of the 35B, and shared memory, read 72 KB a warp and
// tile.
#pragma once
#include <cstdint>

#include "cuda/attention_prefill_softmax.cuh"

namespace calla::cuda {

inline constexpr int attention_mma_threads = 256;

constexpr int attention_mma_shared_bytes(int keys) {
  return (128 + 2 * keys) * Shape::attention_head_dim * static_cast<int>(sizeof(__nv_bfloat16));
}

template <int heads, int kv_heads, int keys>
__global__ __launch_bounds__(attention_mma_threads, 1) void attention_mma_kernel(AttentionPrefill call,
                                                                                 std::size_t layer_offset) {
  using attention::dim;
  using attention::row_bytes;
  constexpr int group = heads / kv_heads;
  static_assert(group == attention_mma_threads / 32 && page_positions % keys == 0);
  // Rows of 512 bytes; the 16-byte pieces of a row are exchanged by XOR with its number mod 8, so that eight
  // rows of a column lie in different banks.
  alignas(1024) extern __shared__ uint4 shared_memory[];
  const std::uint32_t queries = shared_address(shared_memory);
  const std::uint32_t key_tile = queries + 128 * row_bytes;
  const std::uint32_t value_tile = key_tile + keys * row_bytes;

  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4;
  const int t = lane % 4;
  const int kv_head = static_cast<int>(blockIdx.x);
  const int head = kv_head * group + warp;
  // The longest rows first.
  const int first_token = static_cast<int>(gridDim.y - 1 - blockIdx.y) * attention::tokens_a_block;
  const int tokens_here = min(attention::tokens_a_block, call.tokens - first_token);
  const int tiles = (call.position + first_token + tokens_here - 1) / keys + 1;

  wait_for_predecessor();
  // Thread 32 w + c copies piece c of rows w, w + 8, ...; what is not there becomes zeros.
  const std::uint32_t place = warp * row_bytes + ((lane ^ warp) << 4);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int token = warp + i % 2 * 8;
    const __half* from =
        call.y + (static_cast<std::size_t>(first_token + token) * heads + kv_head * group + i / 2) * dim +
        8 * lane;
    const bool present = token < tokens_here;
    copy_async(queries + place + i * 8 * row_bytes, present ? from : call.y, present ? 16 : 0);
  }
  const auto load_tile = [&](std::uint32_t to, int tile, int values) {
    const int first_key = tile * keys;
    const int present = call.position + call.tokens - first_key;
    const __nv_bfloat16* const from = call.pages[first_key / page_positions] + layer_offset +
                                      (kv_head * 2 + values) * page_positions * dim +
                                      (first_key % page_positions + warp) * dim + 8 * lane;
#pragma unroll
    for (int i = 0; i < keys / 8; ++i)
      copy_async(to + place + i * 8 * row_bytes, from + i * 8 * dim, warp + 8 * i < present ? 16 : 0);
    copy_async_commit();
  };
  load_tile(key_tile, 0, 0);

  // Where a lane's row of load_matrices lies: of Q and V, rows lane % 16, right half from lane 16 on; of K,
  // rows of the second eight keys from lane 16 on.
  const std::uint32_t straight = lane % 16 * row_bytes + ((lane / 16 ^ lane % 8) << 4);
  const std::uint32_t crossed = (lane / 16 * 8 + lane % 8) * row_bytes + ((lane / 8 % 2 ^ lane % 8) << 4);
  const std::uint32_t query_rows = queries + warp * 16 * row_bytes + straight;
  const std::uint32_t key_rows = key_tile + crossed;
  const std::uint32_t value_rows = value_tile + straight;

  float o[dim / 8][4] = {};
  attention::Softmax softmax;
  for (int tile = 0; tile < tiles; ++tile) {
    copy_async_wait<0>();
    __syncthreads();  // the keys are there, and the values before are read
    load_tile(value_tile, tile, 1);

    float s[keys / 8][4] = {};
#pragma unroll
    for (int step = 0; step < dim / 16; ++step) {
      const uint4 a = load_matrices(query_rows ^ step << 5);
#pragma unroll
      for (int pair = 0; pair < keys / 16; ++pair) {
        mma_pair_bf16(s[2 * pair], s[2 * pair + 1], a,
                      load_matrices((key_rows ^ step << 5) + pair * 16 * row_bytes));
      }
    }

    const int last_visible = call.position + first_token + g - tile * keys;  // of row g
    if (last_visible - g < keys - 1) attention::mask<keys>(s, last_visible, t);
    float shrink[2];
    softmax.absorb<keys>(s, shrink);
    attention::rescale(o, shrink);

    copy_async_wait<0>();
    __syncthreads();  // the values are there, and the keys are read
    if (tile + 1 < tiles) load_tile(key_tile, tile + 1, 0);
#pragma unroll
    for (int step = 0; step < keys / 16; ++step) {
      const uint4 p = attention::fragment(s[2 * step], s[2 * step + 1]);
#pragma unroll
      for (int pair = 0; pair < dim / 16; ++pair) {
        mma_pair_bf16(o[2 * pair], o[2 * pair + 1], p,
                      load_matrices_transposed((value_rows ^ pair << 5) + step * 16 * row_bytes));
      }
    }
  }

  // The warp's rows of Q are no longer needed.
  attention::write_out<heads>(call, o, softmax, queries + warp * 16 * row_bytes, first_token, head, lane);
}

}  // namespace calla::cuda
