// Gated full attention of decode: one token of each row against its pages, or some tokens of one sequence.
//
//   q, k = turned (RoPE) norms;  o = softmax(q K' / 16) V;  mixed = sigmoid(gate) o
// Shapes: a split of the positions is whole tiles of 64 keys, so many that all splits together cover the
// context; a block has one of them for a KV head of a row, and with more rows several, `gridDim.x` apart; a
// warp takes eight keys of each tile for the eight query heads that share them. Then one block a head merges
// the splits. Where splits begin depends on the position alone.
// Rounding: keys and values are bfloat16; queries are split into two bfloat16 (17 bits), in the two halves of
// the matrix instruction's 16 rows; softmax and the sum over values are float32.
// Bytes moved: 1 KB a position and KV head, once. Bound by them from some thousand positions on, before by
// the two phases.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/decode.h"
#include "cuda/decode_rows.cuh"
#include "cuda/launch.h"
#include "cuda/linear.cuh"

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

struct SharedMemory {
  uint4 queries[steps][warp_threads];  // fragments of the A operand
  float weights[warps][warp_keys][heads_of_block];
  float corrections[warps][heads_of_block];
  float peaks[warps][heads_of_block];
  float sums[warps][heads_of_block];
  float factors[warps][heads_of_block];  // of a warp's part of the block's result
  float outputs[warps][heads_of_block][head_dim];
};

/// Four neighbouring dims of a query go to one instruction: two at its columns 2 t, two at 2 t + 8; so a
/// thread's sixteen bytes of a key are the B operand of two instructions as they are.
__device__ uint4 query_fragment(const float* q) {
  const float high[4] = {rounded_bf16(q[0]), rounded_bf16(q[1]), rounded_bf16(q[2]), rounded_bf16(q[3])};
  return {pack_bf16(high[0], high[1]), pack_bf16(q[0] - high[0], q[1] - high[1]), pack_bf16(high[2], high[3]),
          pack_bf16(q[2] - high[2], q[3] - high[3])};
}

/// Eight keys of a tile: this thread's part of key lane / 4, in the order of the query fragments.
__device__ void load_keys(uint4 (&keys)[8], const __nv_bfloat16* first) {
  const auto* key = reinterpret_cast<const uint4*>(first + lane_id() / 4 * head_dim) + lane_id() % 4;
#pragma unroll
  for (int chunk = 0; chunk < 8; ++chunk) keys[chunk] = key[4 * chunk];
}
/// Their values: this thread's eight dims of each.
__device__ void load_values(uint4 (&values)[8], const __nv_bfloat16* first) {
#pragma unroll
  for (int key = 0; key < 8; ++key)
    values[key] = reinterpret_cast<const uint4*>(first + key * head_dim)[lane_id()];
}

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

template <class Model>
__global__ __maxnreg__(168) void attention_kernel(DeviceLayer layer, DecodeState state, int attention_layer) {
  constexpr Shape S = Model::shape;
  static_assert(S.attention_heads == heads_of_block * S.kv_heads);
  extern __shared__ __align__(16) unsigned char raw[];
  SharedMemory& shared = *reinterpret_cast<SharedMemory*>(raw);
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
  const auto keys_at = [&](int tile) {
    return pages[tile * tile_keys / page_positions] +
           static_cast<std::size_t>(tile * tile_keys % page_positions + warp * warp_keys) * head_dim;
  };
  uint4 keys[8];
  // All but the step's own keys are there already.
  const int begin = first_split * splits.of_split;
  const bool early = (begin + 1) * tile_keys <= first_new;
  if (early) load_keys(keys, keys_at(begin) + keys_offset);
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

  const int g = lane / 4;
  const int t = lane % 4;
  if (!early) load_keys(keys, keys_at(begin) + keys_offset);
  for (int split = first_split; split < splits.count(); split += step) {
    const int first_tile = split * splits.of_split;
    const int last_tile = min(first_tile + splits.of_split, splits.tiles);
    if (split != first_split) __syncthreads();  // the last one has been read
    float peak = -INFINITY;                     // of query head g, as are correction and sum
    float sum = 0;
    float output[heads_of_block][lane_dims] = {};
    for (int tile = first_tile; tile < last_tile; ++tile) {
      uint4 values[8];
      load_values(values, keys_at(tile) + values_offset);
      float parts[4][4] = {};  // sums that do not wait for each other
#pragma unroll
      for (int chunk = 0; chunk < 8; ++chunk) {
        const uint4 a0 = shared.queries[2 * chunk][lane];
        const uint4 a1 = shared.queries[2 * chunk + 1][lane];
        mma_16816_bf16(parts[chunk % 2 * 2], {a0.x, a0.y, a0.z, a0.w}, keys[chunk].x, keys[chunk].y);
        mma_16816_bf16(parts[chunk % 2 * 2 + 1], {a1.x, a1.y, a1.z, a1.w}, keys[chunk].z, keys[chunk].w);
      }
      const auto score = [&](int i) { return parts[0][i] + parts[1][i] + (parts[2][i] + parts[3][i]); };
      const int next_tile = tile + 1 < last_tile ? tile + 1 : (split + step) * splits.of_split;
      if (next_tile < splits.tiles) load_keys(keys, keys_at(next_tile) + keys_offset);

      const int key = tile * tile_keys + warp * warp_keys + 2 * t;
      const float score0 = key <= position ? score(0) + score(2) : -INFINITY;
      const float score1 = key + 1 <= position ? score(1) + score(3) : -INFINITY;
      float highest = fmaxf(score0, score1);
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFFU, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xFFFFFFFFU, highest, 2));
      const float next_peak = fmaxf(peak, highest);
      const bool empty = next_peak == -INFINITY;  // the warp has had no key yet
      const float correction = empty ? 1.0F : exp2f(peak - next_peak);
      const float weight0 = empty ? 0.0F : exp2f(score0 - next_peak);
      const float weight1 = empty ? 0.0F : exp2f(score1 - next_peak);
      sum = sum * correction + weight0 + weight1;
      const bool corrects = __any_sync(0xFFFFFFFFU, next_peak != peak) != 0;
      peak = next_peak;
      shared.weights[warp][2 * t][g] = weight0;
      shared.weights[warp][2 * t + 1][g] = weight1;
      if (t == 0) shared.corrections[warp][g] = correction;
      __syncwarp();
      if (corrects) {
#pragma unroll
        for (int h = 0; h < heads_of_block; ++h) {
          const float factor = shared.corrections[warp][h];
#pragma unroll
          for (float& value : output[h]) value *= factor;
        }
      }
#pragma unroll
      for (int k = 0; k < warp_keys; ++k) {
        const std::uint32_t words[4] = {values[k].x, values[k].y, values[k].z, values[k].w};
#pragma unroll
        for (int h = 0; h < heads_of_block; ++h) {
          const float weight = shared.weights[warp][k][h];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            output[h][2 * i] = fmaf(weight, __uint_as_float(words[i] << 16), output[h][2 * i]);
            output[h][2 * i + 1] =
                fmaf(weight, __uint_as_float(words[i] & 0xFFFF0000U), output[h][2 * i + 1]);
          }
        }
      }
      __syncwarp();
    }

    // The warps' results become the block's, in the order of the warps.
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
    if (t == 0) {
      shared.peaks[warp][g] = peak;
      shared.sums[warp][g] = sum;
    }
#pragma unroll
    for (int h = 0; h < heads_of_block; ++h) {
      auto* out = reinterpret_cast<float4*>(shared.outputs[warp][h]) + 2 * lane;
      out[0] = {output[h][0], output[h][1], output[h][2], output[h][3]};
      out[1] = {output[h][4], output[h][5], output[h][6], output[h][7]};
    }
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
        value = fmaf(shared.factors[w][h], shared.outputs[w][h][threadIdx.x], value);
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
  constexpr int together = 16;
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

}  // namespace

template <class Model>
void decode_attention(cudaStream_t stream, const DeviceLayer& layer, int attention_layer,
                      const DecodeState& state, int rows) {
  constexpr Shape S = Model::shape;
  constexpr std::size_t shared = sizeof(SharedMemory);
  if (state.sequence)
    launch_large(stream, {dim3(static_cast<unsigned>(rows), S.kv_heads), 2 * warp_threads},
                 append_kernel<Model>, layer, state, attention_layer);
  // As many blocks as for a row: an SM has room for one.
  launch_large(stream,
               {dim3(static_cast<unsigned>(attention_splits / rows), S.kv_heads, static_cast<unsigned>(rows)),
                threads, shared},
               attention_kernel<Model>, layer, state, attention_layer);
  launch_large(stream,
               {dim3(S.attention_heads, static_cast<unsigned>(rows)), head_dim,
                rows == 1 ? spread(0, SmShare::less) : 0},
               merge_kernel<Model>, state);
}

template void decode_attention<Qwen36>(cudaStream_t, const DeviceLayer&, int, const DecodeState&, int);
template void decode_attention<Demo>(cudaStream_t, const DeviceLayer&, int, const DecodeState&, int);

}  // namespace calla::cuda
