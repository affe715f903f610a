// First kernel of DeltaNet prefill: all that a chunk of 64 tokens computes without the state before it.
//
// A block has a chunk and a key head with its two value heads. Convolution, SiLU and L2 norms give Q, K, V
// [64][128]; the gates give beta and the running sum G of the log decay. Then, with T = (I + strictly
// lower(beta_i k_i.k_j))^-1 and all exponents masked before exp (none is positive):
//   W = e^(G_i) (T beta_j) K     U0 = (T beta_j e^(G_i - G_j)) V     P = lower(q_i.k_j e^(G_i - G_j))
// so that the second kernel has only U = U0 - W S, O = e^(G_i) Q S + P U and the state's update to do.
// Rounding: operands half, accumulators float; T in float throughout, as nearly parallel keys make it cancel.
// Bytes a block: 67 KB read, 113 KB written; 370 MB a layer of 8,192 tokens of the 35B, 0.08 ms of an H200's
// memory. What bounds it is that its steps (copies, convolution, products, inverse, products) take turns at
// different limits of the SM; half of its time is copies and the inverse.
#pragma once
#include "cuda/delta_prefill_workspace.cuh"
#include "cuda/mixer_fragments.cuh"

namespace calla::cuda {

inline constexpr int delta_chunks_threads = 256;

namespace delta {

inline constexpr int dim = Shape::delta_head_dim;
using Matrix = SharedMatrix<SwizzledRows>;

/// A square of 32 x 32 floats in shared memory. The four-float pieces of a row are exchanged by XOR with its
/// number mod 8, so that rows, columns and fragments are read without bank conflicts.
struct Square {
  static constexpr int size = 32;
  float* data;

  __device__ float& at(int row, int column) const {
    return data[row * size + ((column / 4 ^ row % 8) * 4 + column % 4)];
  }
  __device__ float2& pair(int row, int column) const { return reinterpret_cast<float2&>(at(row, column)); }
  /// Four neighbours, the same for all lanes.
  __device__ float4 four(int row, int column) const {
    return reinterpret_cast<const float4&>(at(row, column));
  }
};

/// Shared memory of a block.
struct ChunkTiles {
  // I + L, then T, of the two value heads, each as the squares X11, X21, X22. Before them, the same memory is
  // Q.
  alignas(1024) float inverse[2][3][Square::size * Square::size];
  alignas(1024) __half k[delta_chunk * dim];
  alignas(1024) __half v[2][delta_chunk * dim];
  float log_decay[2][delta_chunk];  // G
  float beta[2][delta_chunk];

  __device__ Matrix q_matrix() { return {{shared_address(inverse)}}; }
  __device__ Matrix k_matrix() { return {{shared_address(k)}}; }
  __device__ Matrix v_matrix(int head) { return {{shared_address(v[head])}}; }
  /// Where rows 16 m .. +15 and columns 16 step .. +15 lie; the square's rows and columns are counted from
  /// its own.
  __device__ Square square(int head, int m, int step) {
    return {inverse[head][m < 2 ? 0 : step < 2 ? 1 : 2]};
  }
};
static_assert(sizeof(ChunkTiles::inverse) >= sizeof(ChunkTiles::k));

/// Convolution, SiLU and, for q and k, the L2 norm, in place in shared memory. Warps 2 i and 2 i + 1 have the
/// first and last 32 tokens of q, k and the two heads of v, and copy them there themselves; a lane computes
/// four channels.
template <int key_heads, int value_heads>
__device__ inline void convolve(const DeltaPrefill& call, ChunkTiles& tiles, int chunk, int key_head) {
  constexpr int group = 4;  // tokens at a time
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int stream = static_cast<int>(threadIdx.x / 64);
  const int first_row = static_cast<int>(threadIdx.x / 32 % 2) * (delta_chunk / 2);
  const int first_token = chunk * delta_chunk + first_row;
  const int first_channel = stream == 0   ? key_head * dim
                            : stream == 1 ? key_heads * dim + key_head * dim
                                          : 2 * key_heads * dim + (2 * key_head + stream - 2) * dim;
  const SwizzledRows rows = stream == 0   ? tiles.q_matrix().rows
                            : stream == 1 ? tiles.k_matrix().rows
                                          : tiles.v_matrix(stream - 2).rows;
  const auto projected = [&](int token, int channel) {
    return call.projected + static_cast<std::size_t>(token) * call.stride + channel;
  };
#pragma unroll
  for (int i = 0; i < delta_chunk / 4; ++i) {  // two rows of 256 bytes at a time
    const int row = 2 * i + lane / 16;
    const bool present = first_token + row < call.tokens;
    copy_async(rows.at(first_row, 0, row, lane % 16),
               projected(present ? first_token + row : 0, first_channel + lane % 16 * 8), present ? 16 : 0);
  }

  const int channel = first_channel + 4 * lane;
  float taps[4][4];
  float past[3][4] = {};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float4 row = reinterpret_cast<const float4*>(call.convolution)[channel + c];
    taps[0][c] = row.x;
    taps[1][c] = row.y;
    taps[2][c] = row.z;
    taps[3][c] = row.w;
  }
  const auto widen = [](const uint2& halves, float(&x)[4]) {
    const float2 low = unpack_half(halves.x);
    const float2 high = unpack_half(halves.y);
    x[0] = low.x;
    x[1] = low.y;
    x[2] = high.x;
    x[3] = high.y;
  };
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int token = first_token - 3 + i;
    const int position = call.position + token;
    if (token >= call.tokens || position < 0) continue;
    if (token >= 0) {
      widen(*reinterpret_cast<const uint2*>(projected(token, channel)), past[i]);
    } else {
      const float4 x = *reinterpret_cast<const float4*>(
          call.window + static_cast<std::size_t>(position % 4) * delta_channels<key_heads, value_heads> +
          channel);
      past[i][0] = x.x;
      past[i][1] = x.y;
      past[i][2] = x.z;
      past[i][3] = x.w;
    }
  }

  copy_async_wait_all();
  __syncwarp();
#pragma unroll 1
  for (int row = 0; row < delta_chunk / 2; row += group) {
    const auto place = [&](int i, int column) {  // of a column of row + i
      return rows.at(first_row, 0, row + i, column / 8) + column % 8 * 2;
    };
    float out[group][4];
#pragma unroll
    for (int i = 0; i < group; ++i) {
      float now[4];
      widen(load_shared8(place(i, 4 * lane)), now);
      const bool present = first_token + row + i < call.tokens;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float sum =
            past[0][c] * taps[0][c] + past[1][c] * taps[1][c] + past[2][c] * taps[2][c] + now[c] * taps[3][c];
        out[i][c] = present ? silu(sum) : 0.0F;
        past[0][c] = past[1][c];
        past[1][c] = past[2][c];
        past[2][c] = now[c];
      }
    }
    if (stream < 2) {
      float squares[group];
#pragma unroll
      for (int i = 0; i < group; ++i) {
        squares[i] =
            out[i][0] * out[i][0] + out[i][1] * out[i][1] + out[i][2] * out[i][2] + out[i][3] * out[i][3];
      }
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
#pragma unroll
        for (int i = 0; i < group; ++i) squares[i] += __shfl_xor_sync(~0U, squares[i], distance);
      }
      const float scale = stream == 0 ? 0.08838834764831845F : 1.0F;  // q: 128^-1/2
#pragma unroll
      for (int i = 0; i < group; ++i) {
        const float factor = rsqrtf(squares[i] + 1e-6F) * scale;
        store_shared8(place(i, 4 * lane), {pack_half(out[i][0] * factor, out[i][1] * factor),
                                           pack_half(out[i][2] * factor, out[i][3] * factor)});
      }
    } else {
      __syncwarp();  // other lanes' values lie where these go
#pragma unroll
      for (int i = 0; i < group; ++i) {
        store_shared(place(i, delta_value_place(4 * lane)), pack_half(out[i][0], out[i][1]));
        store_shared(place(i, delta_value_place(4 * lane + 2)), pack_half(out[i][2], out[i][3]));
      }
    }
  }
}

/// beta and the running sum of the log decay of a value head, by one warp. A token that is not there neither
/// decays nor writes.
template <int key_heads, int value_heads>
__device__ inline void compute_gates(const DeltaPrefill& call, ChunkTiles& tiles, int chunk, int value_head,
                                     int which) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float rate = -expf(call.a_log[value_head]);
  const float bias = call.dt_bias[value_head];
  float log_decay[2];
  float beta[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = chunk * delta_chunk + 2 * lane + i;
    log_decay[i] = beta[i] = 0;
    if (token >= call.tokens) continue;
    const float* row = call.gates + static_cast<std::size_t>(token) * 2 * value_heads + value_head;
    const float x = row[0] + bias;
    log_decay[i] = rate * (fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x))));
    beta[i] = 1.0F / (1.0F + expf(-row[value_heads]));
  }
  float sum = log_decay[0] + log_decay[1];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float before = __shfl_up_sync(~0U, sum, distance);
    if (lane >= distance) sum += before;
  }
  tiles.log_decay[which][2 * lane] = sum - log_decay[1];
  tiles.log_decay[which][2 * lane + 1] = sum;
  tiles.beta[which][2 * lane] = beta[0];
  tiles.beta[which][2 * lane + 1] = beta[1];
}

/// Row `row` of a square times a column in registers.
__device__ inline float row_times(const Square& square, int row, const float (&column)[Square::size]) {
  float sums[4] = {};
#pragma unroll
  for (int m = 0; m < Square::size; m += 4) {
    const float4 r = square.four(row, m);
    sums[0] += r.x * column[m];
    sums[1] += r.y * column[m + 1];
    sums[2] += r.z * column[m + 2];
    sums[3] += r.w * column[m + 3];
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// (I + L)^-1 for both heads in place, L strictly lower 64 x 64; what lies on and above the diagonal on entry
/// is not read. X11 and X22 by substitution, X21 = -X22 (L21 X11). A lane has a column in registers and reads
/// rows as broadcasts.
__device__ inline void invert(ChunkTiles& tiles) {
  constexpr int size = Square::size;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  float column[size];
  if (warp < 4) {
    const Square x = {tiles.inverse[warp / 2][warp % 2 * 2]};
#pragma unroll
    for (int i = 0; i < size; ++i) {
      float sums[4] = {};
#pragma unroll
      for (int m = 0; m < i; m += 4) {
        const float4 row = x.four(i, m);
        sums[0] += row.x * column[m];
        if (m + 1 < i) sums[1] += row.y * column[m + 1];
        if (m + 2 < i) sums[2] += row.z * column[m + 2];
        if (m + 3 < i) sums[3] += row.w * column[m + 3];
      }
      column[i] = (i == lane ? 1.0F : 0.0F) - ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < size; ++i) x.at(i, lane) = column[i];
  }
  __syncthreads();

  // Four warps a head, eight rows each.
  const Square x11 = {tiles.inverse[warp / 4][0]};
  const Square x21 = {tiles.inverse[warp / 4][1]};
  const Square x22 = {tiles.inverse[warp / 4][2]};
  const int first_row = warp % 4 * 8;
  float product[8];
#pragma unroll
  for (int i = 0; i < size; ++i) column[i] = x11.at(i, lane);
#pragma unroll
  for (int i = 0; i < 8; ++i) product[i] = row_times(x21, first_row + i, column);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; ++i) x21.at(first_row + i, lane) = product[i];
  __syncthreads();

#pragma unroll
  for (int i = 0; i < size; ++i) column[i] = x21.at(i, lane);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) x21.at(first_row + i, lane) = -row_times(x22, first_row + i, column);
  __syncthreads();
}

}  // namespace delta

template <int key_heads, int value_heads>
__global__ __launch_bounds__(delta_chunks_threads,
                             3) void delta_chunks_kernel(DeltaPrefill call,
                                                         DeltaWorkspace<key_heads, value_heads> workspace) {
  static_assert(value_heads == 2 * key_heads);
  alignas(1024) extern __shared__ uint4 shared_memory[];
  auto& tiles = *reinterpret_cast<delta::ChunkTiles*>(shared_memory);
  const int chunk = static_cast<int>(blockIdx.y);
  const int key_head = static_cast<int>(blockIdx.x);  // the neighbours read neighbouring columns
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4;
  const int t = lane % 4;
  const std::size_t key_tile =
      (static_cast<std::size_t>(chunk) * key_heads + key_head) * DeltaWorkspace<key_heads, value_heads>::tile;
  const std::size_t first_value = static_cast<std::size_t>(chunk) * value_heads + 2 * key_head;

  wait_for_predecessor();
  delta::convolve<key_heads, value_heads>(call, tiles, chunk, key_head);
  if (warp == 4 || warp == 6) {
    const int which = (warp - 4) / 2;
    delta::compute_gates<key_heads, value_heads>(call, tiles, chunk, 2 * key_head + which, which);
  }
  __syncthreads();

  // K K^T in warps 0 .. 3, Q K^T in warps 4 .. 7, 16 rows each, left of the diagonal; Q and K^T leave as
  // fragments.
  const int m = warp % 4;
  const bool of_queries = warp >= 4;
  const int row = 16 * m + g;
  const delta::Matrix k = tiles.k_matrix();
  const delta::Matrix rows = of_queries ? tiles.q_matrix() : k;
  float products[8][4] = {};
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint4 a = rows.a(16 * m, 16 * step, lane);
    if (of_queries) workspace.q[key_tile + (m * 8 + step) * 32 + lane] = a;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if (pair > m) continue;
      mma_pair(products[2 * pair], products[2 * pair + 1], a, k.b_transposed(16 * pair, 16 * step, lane));
    }
  }
#pragma unroll
  for (int step = 0; step < 4; ++step)
    workspace.k[key_tile + (warp * 4 + step) * 32 + lane] = k.a_transposed(16 * step, 16 * warp, lane);
  __syncthreads();  // Q has been read: its place becomes L

#pragma unroll
  for (int head = 0; head < 2; ++head) {
    const float log_decay[2] = {tiles.log_decay[head][row], tiles.log_decay[head][row + 8]};
    const float beta[2] = {tiles.beta[head][row], tiles.beta[head][row + 8]};
    uint4* const p =
        workspace.p + (first_value + head) * (DeltaWorkspace<key_heads, value_heads>::tile / 2) + m * 4 * 32;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if (pair > m) continue;
      float masked[2][4];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int column = 16 * pair + 8 * side + 2 * t;
        const float(&tile)[4] = products[2 * pair + side];
        if (!of_queries) {
          const delta::Square l = tiles.square(head, m, pair);
          l.pair(row % 32, column % 32) = {beta[0] * tile[0], beta[0] * tile[1]};
          l.pair(row % 32 + 8, column % 32) = {beta[1] * tile[2], beta[1] * tile[3]};
          continue;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool visible = column + i % 2 <= row + i / 2 * 8;
          const float exponent = log_decay[i / 2] - tiles.log_decay[head][column + i % 2];
          masked[side][i] = visible ? tile[i] * exp_approximate(fminf(exponent, 0.0F)) : 0.0F;
        }
      }
      if (of_queries) p[pair * 32 + lane] = pack_half(masked[0], masked[1]);
    }
  }
  __syncthreads();
  delta::invert(tiles);

  // W and U0: warps 0 .. 3 have the first value head, 4 .. 7 the second, 16 rows each.
  const int head = warp / 4;
  const float log_decay[2] = {tiles.log_decay[head][row], tiles.log_decay[head][row + 8]};
  uint4 updates[4];  // T beta
  uint4 decayed[4];  // T beta e^(G_i - G_j)
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (step > m) continue;
    float undecayed[2][4];
    float with_decay[2][4];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 16 * step + 8 * side + 2 * t + i % 2;
        const float exponent = log_decay[i / 2] - tiles.log_decay[head][column];
        undecayed[side][i] =
            tiles.square(head, m, step).at(row % 32 + i / 2 * 8, column % 32) * tiles.beta[head][column];
        with_decay[side][i] = undecayed[side][i] * exp_approximate(fminf(exponent, 0.0F));
      }
    }
    updates[step] = pack_half(undecayed[0], undecayed[1]);
    decayed[step] = pack_half(with_decay[0], with_decay[1]);
  }
  const float state_decay[2] = {exp_approximate(log_decay[0]), exp_approximate(log_decay[1])};
  const delta::Matrix v = tiles.v_matrix(head);
  const std::size_t value_tile = (first_value + head) * DeltaWorkspace<key_heads, value_heads>::tile;
#pragma unroll
  for (int pair = 0; pair < 8; ++pair) {
    float w[2][4] = {};
    float u[2][4] = {};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step > m) continue;
      mma_pair(w[0], w[1], updates[step], k.b(16 * step, 16 * pair, lane));
      mma_pair(u[0], u[1], decayed[step], v.b(16 * step, 16 * pair, lane));
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
#pragma unroll
      for (int i = 0; i < 4; ++i) w[side][i] *= state_decay[i / 2];
    }
    workspace.w[value_tile + (m * 8 + pair) * 32 + lane] = pack_half(w[0], w[1]);
    workspace.u[value_tile + ((pair / 2 * 4 + m) * 2 + pair % 2) * 32 + lane] = pack_half(u[0], u[1]);
  }
  if (threadIdx.x < 2 * delta_chunk) {
    const int which = static_cast<int>(threadIdx.x) / delta_chunk;
    const int token = static_cast<int>(threadIdx.x) % delta_chunk;
    const float sum = tiles.log_decay[which][token];
    float* const decays = workspace.decays + (first_value + which) * 2 * delta_chunk;
    decays[token] = exp_approximate(sum);
    decays[delta_chunk + token] = exp_approximate(tiles.log_decay[which][delta_chunk - 1] - sum);
  }
}

}  // namespace calla::cuda
