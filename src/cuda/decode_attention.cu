// Gated full attention of decode: one token of each row against its pages, or some tokens of one sequence.
//
//   q, k = turned (RoPE) norms;  o = softmax(q K' / 16) V;  mixed = sigmoid(gate) o
// Shapes: a split of the positions is whole tiles of 64 keys, so many that all splits together cover the
// context; a block has one of them for a KV head of a row, and with more rows several, `gridDim.x` apart; a
// warp takes eight keys of each tile for the eight query heads that share them, and brings them through
// shared memory by itself, so that warps wait for each other only at the end of a split. Then one block a
// head merges the splits. Where splits begin depends on the position alone.
// Rounding: keys and values are bfloat16; queries and the weights of values are split into two bfloat16 (17
// bits), in the two halves of the matrix instructions' 16 rows; all sums are float32.
// Bytes moved: 1 KB a position and KV head, once. Bound by them from some thousand positions on, before by
// the two phases.
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/decode.h"
#include "cuda/decode_rows.cuh"
#include "cuda/launch.h"
#include "cuda/linear.cuh"
#include "cuda/mixer_ptx.cuh"

namespace calla::cuda {
namespace {

constexpr int head_dim = Shape::attention_head_dim;
constexpr int heads_of_block = 8;  // query heads of a KV head
constexpr int threads = 256;
constexpr int warps = threads / warp_threads;
constexpr int tile_keys = 64;
constexpr int warp_keys = tile_keys / warps;
constexpr int steps = head_dim / 16;  // matrix instructions for eight keys
constexpr int lane_dims = head_dim / warp_threads;
// The queries carry the softmax scale, 1 / 16, and log2 e, so that exponentials are powers of two.
constexpr float query_scale = 1.4426950408889634F / 16.0F;
static_assert(warp_keys == 8 && lane_dims == 8);

/// Where the splits of a sequence of `keys` positions begin and end, in tiles.
struct Splits {
  int tiles;
  int of_split;
  __device__ explicit Splits(int keys)
      : tiles((keys + tile_keys - 1) / tile_keys),
        of_split((tiles + attention_splits - 1) / attention_splits) {}
  __device__ int count() const { return (tiles + of_split - 1) / of_split; }
};

/// What a thread needs to norm and turn its eight dims of a head; older than the projection.
struct Turn {
  static constexpr int half = Shape::rotary_dim / 2;
  static constexpr int half_lanes = half / lane_dims;
  float gain[lane_dims];
  float cosines[lane_dims];
  float sines[lane_dims];

  __device__ Turn(const float* gains, const float* turns) {
    const int lane = lane_id();
    load8(gains + lane * lane_dims, gain);
    const int first = lane % half_lanes * lane_dims;
    load8(turns + first, cosines);
    load8(turns + half + first, sines);
  }
  /// A thread's eight dims of a head's projection, normed and turned.
  __device__ void operator()(const float* projected, float (&out)[lane_dims]) const {
    const int lane = lane_id();
    float in[lane_dims];
    load8(projected + lane * lane_dims, in);
    float squares = 0;
#pragma unroll
    for (float value : in) squares += value * value;
    const float inverse = rsqrtf(sum_of_warp(squares) / head_dim + rms_norm_epsilon);
#pragma unroll
    for (int i = 0; i < lane_dims; ++i) {
      const float value = in[i] * inverse * gain[i];
      const float partner = __shfl_xor_sync(0xFFFFFFFFU, value, half_lanes);
      out[i] = value;
      if (lane < 2 * half_lanes)
        out[i] = value * cosines[i] + (lane < half_lanes ? -partner : partner) * sines[i];
    }
  }
};

__device__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ float rounded_bf16(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }

/// Writes a thread's eight dims as 16 bytes of bfloat16.
__device__ void store_bf16(__nv_bfloat16* at, const float (&values)[lane_dims]) {
  reinterpret_cast<uint4*>(at)[lane_id()] = {pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]),
                                             pack_bf16(values[4], values[5]),
                                             pack_bf16(values[6], values[7])};
}

/// A warp's eight keys of a tile, or their values, in shared memory.
constexpr int pieces = head_dim / 8;  // of 16 bytes, of a key
using WarpRows = uint4[warp_keys * pieces];

/// Where a piece lies: neither eight keys' same pieces nor two keys' neighbouring four meet in a bank.
__device__ int piece_at(int key, int piece) { return key * pieces + (piece ^ (key % 2 * 4 + key / 2)); }

/// What the warps put out lies where the tile was if a block has one split, and has a place of its own if the
/// next one's tile is already on its way.
template <bool OneSplit>
struct SharedMemory {
  static constexpr int output_stride = head_dim + 8;  // so that heads begin in other banks
  using Outputs = float[warps][heads_of_block][output_stride];
  struct Tile {
    WarpRows keys[warps];
    WarpRows values[warps];
  };
  union OneAfterTheOther {
    Tile tile;
    Outputs outputs;
  };
  struct SideBySide {
    Tile tile;
    Outputs outputs;
  };
  std::conditional_t<OneSplit, OneAfterTheOther, SideBySide> split;
  uint4 queries[steps][warp_threads];  // fragments of the A operand
  float peaks[warps][heads_of_block];
  float sums[warps][heads_of_block];
  float factors[warps][heads_of_block];  // of a warp's part of the block's result
};

/// Four neighbouring dims of a query go to one instruction: two at its columns 2 t, two at 2 t + 8; so a
/// thread's sixteen bytes of a key are the B operand of two instructions as they are.
__device__ uint4 query_fragment(const float* q) {
  const float high[4] = {rounded_bf16(q[0]), rounded_bf16(q[1]), rounded_bf16(q[2]), rounded_bf16(q[3])};
  return {pack_bf16(high[0], high[1]), pack_bf16(q[0] - high[0], q[1] - high[1]), pack_bf16(high[2], high[3]),
          pack_bf16(q[2] - high[2], q[3] - high[3])};
}

/// The warp starts to copy eight neighbouring keys or values, of which those from `count` on are zeros.
__device__ void copy_rows(WarpRows& to, const __nv_bfloat16* from, int count) {
#pragma unroll
  for (int key = 0; key < warp_keys; ++key)
    copy_async(shared_address(to + piece_at(key, lane_id())), from + key * head_dim + lane_id() * 8,
               key < count ? 16 : 0);
}

/// The scores of eight keys: a lane has those of head lane / 4 and of the keys 2 (lane % 4) and the next.
__device__ float2 scores_of(const WarpRows& keys, const uint4 (&queries)[steps][warp_threads]) {
  const int lane = lane_id();
  float parts[4][4] = {};  // sums that do not wait for each other
#pragma unroll
  for (int chunk = 0; chunk < 8; ++chunk) {
    const uint4 key = keys[piece_at(lane / 4, 4 * chunk + lane % 4)];
    const uint4 a0 = queries[2 * chunk][lane];
    const uint4 a1 = queries[2 * chunk + 1][lane];
    mma_16816_bf16(parts[chunk % 2 * 2], {a0.x, a0.y, a0.z, a0.w}, key.x, key.y);
    mma_16816_bf16(parts[chunk % 2 * 2 + 1], {a1.x, a1.y, a1.z, a1.w}, key.z, key.w);
  }
  const auto score = [&](int i) { return parts[0][i] + parts[1][i] + (parts[2][i] + parts[3][i]); };
  return {score(0) + score(2), score(1) + score(3)};
}

/// What a warp has made of the keys so far, of a lane's head lane / 4: the largest score, the lane's part of
/// the sum of weights, and the weighted sums of values, once for each half of the weights: of the dims 8 i +
/// 2 (lane % 4) and the next, those of the higher halves in [i][0] and [1], of the lower ones behind.
struct Running {
  float peak = -INFINITY;
  float sum = 0;
  float output[pieces][4] = {};

  /// The weights of two keys with these scores, relative to the new peak.
  __device__ float2 weigh(const float2& scores) {
    float highest = fmaxf(scores.x, scores.y);
    highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFFU, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFFU, highest, 2));
    const float next_peak = fmaxf(peak, highest);
    const bool empty = next_peak == -INFINITY;  // the warp has had no key yet
    const float correction = empty ? 1.0F : exp2f(peak - next_peak);
    const float2 weights{empty ? 0.0F : exp2f(scores.x - next_peak),
                         empty ? 0.0F : exp2f(scores.y - next_peak)};
    sum = sum * correction + weights.x + weights.y;
    if (__any_sync(0xFFFFFFFFU, next_peak != peak) != 0) {
#pragma unroll
      for (auto& sums : output) {
#pragma unroll
        for (float& value : sums) value *= correction;
      }
    }
    peak = next_peak;
    return weights;
  }

  __device__ void add(const WarpRows& values, const float2& weights) {
    const int lane = lane_id();
    const float2 high{rounded_bf16(weights.x), rounded_bf16(weights.y)};
    const std::uint32_t a0 = pack_bf16(high.x, high.y);
    const std::uint32_t a1 = pack_bf16(weights.x - high.x, weights.y - high.y);
#pragma unroll
    for (int i = 0; i < pieces; i += 4) {
      const uint4 b =
          load_matrices_transposed(shared_address(values + piece_at(lane % warp_keys, i + lane / warp_keys)));
      mma_1688_bf16(output[i], a0, a1, b.x);
      mma_1688_bf16(output[i + 1], a0, a1, b.y);
      mma_1688_bf16(output[i + 2], a0, a1, b.z);
      mma_1688_bf16(output[i + 3], a0, a1, b.w);
    }
  }

  /// Into the warp's place: [head][dim].
  template <std::size_t Stride>
  __device__ void store(float (&out)[heads_of_block][Stride]) const {
    const int lane = lane_id();
    auto* const mine = reinterpret_cast<float2*>(out[lane / 4]) + lane % 4;
#pragma unroll
    for (int i = 0; i < pieces; ++i) mine[4 * i] = {output[i][0] + output[i][2], output[i][1] + output[i][3]};
  }
};

/// Appends a row's key (by warp 0) and value (by warp 1) of a KV head to its pages.
template <class Model>
__device__ void append(const DeviceLayer& layer, const DecodeState& state, int row, int kv_head,
                       PageTable pages, int attention_layer, int position) {
  constexpr Shape S = Model::shape;
  const int warp = warp_id();
  if (warp > 1) return;
  const float* const projected = state.projected +
                                 static_cast<std::size_t>(row) * (2 * S.attention_dim() + 2 * S.kv_dim()) +
                                 2 * S.attention_dim() + warp * S.kv_dim() + kv_head * head_dim;
  float out[lane_dims];
  if (warp == 0) {
    const Turn turn(layer.k_norm, state.turns + row * Shape::rotary_dim);
    turn(projected, out);
  } else {
    load8(projected + lane_id() * lane_dims, out);
  }
  store_bf16(pages[position / page_positions] + page_offset<S>(attention_layer, kv_head, warp) +
                 static_cast<std::size_t>(position % page_positions) * head_dim,
             out);
}

/// Appends the keys and values of a sequence's rows.
template <class Model>
__global__ __launch_bounds__(2 * warp_threads) void append_kernel(DeviceLayer layer, DecodeState state,
                                                                  int attention_layer) {
  const int row = static_cast<int>(blockIdx.x);
  release_successor();
  wait_for_predecessor();
  const int slot = state.slots[row];
  if (slot < 0) return;
  append<Model>(layer, state, row, static_cast<int>(blockIdx.y), state.pages[slot], attention_layer,
                position_of(state, row, slot));
}

template <class Model, bool OneSplit>
__global__ __maxnreg__(168) void attention_kernel(DeviceLayer layer, DecodeState state, int attention_layer) {
  constexpr Shape S = Model::shape;
  static_assert(S.attention_heads == heads_of_block * S.kv_heads);
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<SharedMemory<OneSplit>*>(raw);
  const auto first_split = static_cast<int>(blockIdx.x);
  const auto step = static_cast<int>(gridDim.x);  // from a split of the block to its next
  const int kv_head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.z);
  const int warp = warp_id();
  const int lane = lane_id();

  // What a row is was settled long before the predecessor.
  const int slot = state.slots[row];
  const int position = slot < 0 ? 0 : position_of(state, row, slot);
  const Splits splits(position + 1);
  if (slot < 0 || state.active[row] == 0 || first_split >= splits.count()) {
    release_successor();
    wait_for_predecessor();
    return;
  }
  const PageTable pages = state.pages[slot];
  const std::size_t keys_offset = page_offset<S>(attention_layer, kv_head, 0);
  const std::size_t values_offset = page_offset<S>(attention_layer, kv_head, 1);
  const float* const projected =
      state.projected + static_cast<std::size_t>(row) * (2 * S.attention_dim() + 2 * S.kv_dim());
  // Of a sequence, the kernel before this one has written the keys and values of all rows.
  const bool has_newest = !state.sequence && (splits.count() - 1 - first_split) % step == 0;
  const int first_new = position - (state.sequence ? row : 0);
  const Turn query_turn(layer.q_norm, state.turns + row * Shape::rotary_dim);

  WarpRows& keys = shared.split.tile.keys[warp];
  WarpRows& values = shared.split.tile.values[warp];
  // The tiles of the block, one split's behind the other's.
  struct Place {
    int split;
    int tile;
  };
  const auto go_on = [&](Place& place) {
    ++place.tile;
    if (place.tile < (place.split + 1) * splits.of_split) return;
    place.split += step;
    place.tile = place.split * splits.of_split;
  };
  // Where a warp's keys of a tile begin; null behind the last tile.
  const auto rows_of = [&](const Place& place) -> const __nv_bfloat16* {
    if (place.tile >= splits.tiles) return nullptr;
    return pages[place.tile * tile_keys / page_positions] +
           static_cast<std::size_t>(place.tile * tile_keys % page_positions + warp * warp_keys) * head_dim;
  };
  const auto copy = [&](WarpRows& to, std::size_t offset, const Place& place, const __nv_bfloat16* rows) {
    if (rows != nullptr)
      copy_rows(to, rows + offset, position + 1 - place.tile * tile_keys - warp * warp_keys);
    commit_copies();
  };
  Place next{first_split, first_split * splits.of_split};
  const auto start = [&] {
    const __nv_bfloat16* const rows = rows_of(next);
    copy(keys, keys_offset, next, rows);
    copy(values, values_offset, next, rows);
    go_on(next);
  };
  // All but the step's own keys are there already.
  const bool early = (next.tile + 1) * tile_keys <= first_new;
  if (early) start();
  release_successor();
  wait_for_predecessor();

  {
    const int head = kv_head * heads_of_block + warp;
    float q[lane_dims];
    query_turn(projected + 2 * head * head_dim, q);
#pragma unroll
    for (float& value : q) value *= query_scale;
    shared.queries[lane / 4 * 2][warp * 4 + lane % 4] = query_fragment(q);
    shared.queries[lane / 4 * 2 + 1][warp * 4 + lane % 4] = query_fragment(q + 4);
  }
  if (has_newest) {
    // The token's own key and value, which this block is the first to read.
    append<Model>(layer, state, row, kv_head, pages, attention_layer, position);
  }
  __syncthreads();
  if (!early) start();

  for (int split = first_split; split < splits.count(); split += step) {
    const int first_tile = split * splits.of_split;
    const int last_tile = min(first_tile + splits.of_split, splits.tiles);
    Running running;
    for (int tile = first_tile; tile < last_tile; ++tile) {
      const __nv_bfloat16* const rows = rows_of(next);
      wait_for_copies<1>();  // all but the values
      __syncwarp();
      float2 scores = scores_of(keys, shared.queries);
      __syncwarp();
      copy(keys, keys_offset, next, rows);
      const int key = tile * tile_keys + warp * warp_keys + lane % 4 * 2;
      if (key > position) scores.x = -INFINITY;
      if (key + 1 > position) scores.y = -INFINITY;
      const float2 weights = running.weigh(scores);
      wait_for_copies<1>();  // all but the next keys
      __syncwarp();
      running.add(values, weights);
      __syncwarp();
      copy(values, values_offset, next, rows);
      go_on(next);
    }

    // The warps' results become the block's, in the order of the warps.
    float sum = running.sum;
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
    if (OneSplit || split != first_split) __syncthreads();  // what lay here has been read
    if (lane % 4 == 0) {
      shared.peaks[warp][lane / 4] = running.peak;
      shared.sums[warp][lane / 4] = sum;
    }
    running.store(shared.split.outputs[warp]);
    __syncthreads();
    const auto partial_of = [&](int h) {
      return state.partials +
             ((static_cast<std::size_t>(row) * S.attention_heads + kv_head * heads_of_block + h) *
                  attention_splits +
              split) *
                 attention_partial_floats;
    };
    if (threadIdx.x < heads_of_block) {
      const int h = static_cast<int>(threadIdx.x);
      float block_peak = shared.peaks[0][h];
#pragma unroll
      for (int w = 1; w < warps; ++w) block_peak = fmaxf(block_peak, shared.peaks[w][h]);
      float total = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) {
        shared.factors[w][h] = exp2f(shared.peaks[w][h] - block_peak);
        total = fmaf(shared.factors[w][h], shared.sums[w][h], total);
      }
      partial_of(h)[head_dim] = block_peak;
      partial_of(h)[head_dim + 1] = total;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < heads_of_block; ++h) {
      float value = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w)
        value = fmaf(shared.factors[w][h], shared.split.outputs[w][h][threadIdx.x], value);
      partial_of(h)[threadIdx.x] = value;
    }
  }
}

template <class Model>
__global__ __launch_bounds__(head_dim) void merge_kernel(DecodeState state) {
  constexpr Shape S = Model::shape;
  const int head = static_cast<int>(blockIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  const int dim = static_cast<int>(threadIdx.x);
  release_successor();
  // What a row is was settled long before the predecessor.
  const int slot = state.slots[row];
  const bool runs = slot >= 0 && state.active[row] != 0;
  const int count = runs ? Splits(position_of(state, row, slot) + 1).count() : 0;
  wait_for_predecessor();
  if (!runs) return;
  const float* const partials = state.partials + (static_cast<std::size_t>(row) * S.attention_heads + head) *
                                                     attention_splits * attention_partial_floats;
  const auto at = [&](int split, int i) { return __ldcg(partials + split * attention_partial_floats + i); };
  const float gate =
      __ldcg(state.projected + static_cast<std::size_t>(row) * (2 * S.attention_dim() + 2 * S.kv_dim()) +
             (2 * head + 1) * head_dim + dim);
  // Many outputs are on their way while the splits' factors are made.
  constexpr int together = 33;
  static_assert(attention_splits % together == 0);
  float outputs[together];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < together; ++i) outputs[i] = first + i < count ? at(first + i, dim) : 0.0F;
  };
  __shared__ float peaks[attention_splits];
  __shared__ float factors[attention_splits];
  __shared__ float totals[attention_splits];
  float total_of_split = 0;
  if (dim < attention_splits) {
    peaks[dim] = dim < count ? at(dim, head_dim) : -INFINITY;
    total_of_split = dim < count ? at(dim, head_dim + 1) : 0.0F;
  }
  load(0);
  __syncthreads();
  if (dim < attention_splits) {
    float peak = peaks[0];
#pragma unroll
    for (int split = 1; split < attention_splits; ++split) peak = fmaxf(peak, peaks[split]);
    factors[dim] = exp2f(peaks[dim] - peak);
    totals[dim] = factors[dim] * total_of_split;
  }
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int split = 0; split < attention_splits; ++split) total += totals[split];
  float value = 0;
  for (int first = 0; first < count; first += together) {
    if (first > 0) load(first);
#pragma unroll
    for (int i = 0; i < together; ++i) value = fmaf(factors[first + i], outputs[i], value);
  }
  state.mixed[static_cast<std::size_t>(row) * S.attention_dim() + head * head_dim + dim] =
      __fdividef(value, total) * sigmoid(gate);
}

/// A row's splits go to `blocks` blocks for each KV head.
template <class Model, bool OneSplit>
void launch_attention(cudaStream_t stream, const DeviceLayer& layer, int attention_layer,
                      const DecodeState& state, int rows, int blocks) {
  constexpr Shape S = Model::shape;
  launch_large(stream,
               {dim3(static_cast<unsigned>(blocks), S.kv_heads, static_cast<unsigned>(rows)), threads,
                sizeof(SharedMemory<OneSplit>)},
               attention_kernel<Model, OneSplit>, layer, state, attention_layer);
}

}  // namespace

template <class Model>
void decode_attention(cudaStream_t stream, const DeviceLayer& layer, int attention_layer,
                      const DecodeState& state, int rows) {
  constexpr Shape S = Model::shape;
  if (state.sequence)
    launch_large(stream, {dim3(static_cast<unsigned>(rows), S.kv_heads), 2 * warp_threads},
                 append_kernel<Model>, layer, state, attention_layer);
  // Of a row alone each split has a block, which asks for so little memory that it begins beside the
  // projection. Of many rows there are about as many blocks as of one: an SM has room for one.
  if (rows > 1 && state.block_memory >= sizeof(SharedMemory<false>)) {
    launch_attention<Model, false>(stream, layer, attention_layer, state, rows, attention_splits / rows);
  } else {
    launch_attention<Model, true>(stream, layer, attention_layer, state, rows, attention_splits);
  }
  launch_large(stream,
               {dim3(S.attention_heads, static_cast<unsigned>(rows)), head_dim,
                rows == 1 ? spread(0, SmShare::less) : 0},
               merge_kernel<Model>, state);
}

template void decode_attention<Qwen36>(cudaStream_t, const DeviceLayer&, int, const DecodeState&, int);
template void decode_attention<Demo>(cudaStream_t, const DeviceLayer&, int, const DecodeState&, int);

}  // namespace calla::cuda
