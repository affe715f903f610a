// Packing at load.
//
// Formula: none, bits are moved: tile(row / 16, column / 64) as tiles.h has it.
// Shapes: a warp a tile; lane 4 g + t reads the 64 columns of rows g and g + 8 and writes the 16 bytes that
//   it will own in a product.
// Bytes: 576 in and 576 out a tile, 40 GB of traffic for the whole 35B: 10 ms of the upload's seconds.
// Bound: device memory, and hidden behind the copies from the host.
#include "cuda/device.h"
#include "cuda/pack.h"
#include "cuda/tiles.h"

namespace calla::cuda {
namespace {

constexpr int threads = 256;
constexpr int words_of_tile_row = tile_columns / 8;

/// Bytes t of two neighbouring words as the nibbles 0, 2, 4, 6 of a fragment's word: the codes at k, k + 8,
/// k + 1 and k + 9.
__device__ std::uint32_t spread(std::uint32_t first, std::uint32_t second, int t) {
  const std::uint32_t a = first >> (8 * t);
  const std::uint32_t b = second >> (8 * t);
  return (a & 0xF) | (b & 0xF) << 8 | (a & 0xF0) << 12 | (b & 0xF0) << 20;
}

__global__ void pack_tiles(StagedRows rows, std::byte* tiles) {
  const int columns = rows.columns / tile_columns;
  const int tile = static_cast<int>(blockIdx.x) * (threads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int first_row = tile / columns * tile_rows;
  const int group = tile % columns;
  if (first_row >= rows.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;

  std::uint32_t out[4] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + g + 8 * half;
    if (row >= rows.rows) continue;
    const auto* const in = reinterpret_cast<const uint4*>(
        rows.words + (static_cast<std::size_t>(row) * columns + group) * words_of_tile_row);
    const uint4 low = in[0];
    const uint4 high = in[1];
    out[0] |= spread(low.x, low.y, t) << (4 * half);
    out[1] |= spread(low.z, low.w, t) << (4 * half);
    out[2] |= spread(high.x, high.y, t) << (4 * half);
    out[3] |= spread(high.z, high.w, t) << (4 * half);
  }
  std::byte* const at = tiles + static_cast<std::size_t>(tile) * tile_bytes;
  reinterpret_cast<uint4*>(at)[lane] = make_uint4(out[0], out[1], out[2], out[3]);
  if (lane < tile_rows) {
    const int row = first_row + lane / 2 + 8 * (lane % 2);
    std::uint32_t pair = 0;
    if (row < rows.rows) {
      const std::size_t index = static_cast<std::size_t>(row) * columns + group;
      pair = rows.scales[index] | std::uint32_t{rows.biases[index]} << 16;
    }
    reinterpret_cast<std::uint32_t*>(at + tile_code_bytes)[lane] = pair;
  }
}

__global__ void pack_pairs(const std::uint16_t* scales, const std::uint16_t* biases, std::uint32_t* pairs,
                           int count) {
  const int i = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  if (i < count) pairs[i] = scales[i] | std::uint32_t{biases[i]} << 16;
}

/// A warp makes a tile. Bytes moved: the codes once a plane, and the tiles; done once, at load.
__global__ void pack_planes(ByteRows rows, std::byte* tiles) {
  const int lane = static_cast<int>(threadIdx.x);
  const int group = static_cast<int>(blockIdx.x);
  const int plane = static_cast<int>(blockIdx.y) % code_planes;
  const int first_row = static_cast<int>(blockIdx.y) / code_planes * tile_rows;
  const int groups = rows.columns / tile_columns;
  std::byte* const tile = tiles + (static_cast<std::size_t>(blockIdx.y) * groups + group) * tile_bytes;
  const int g = lane / 4;
  const int t = lane % 4;
  const auto code = [&](int row, int column) -> std::uint32_t {
    if (first_row + row >= rows.rows) return 0;
    const std::size_t at =
        static_cast<std::size_t>(first_row + row) * rows.columns + group * tile_columns + column;
    return (rows.codes[at] >> (4 * plane)) & 0xFU;
  };
  for (int h = 0; h < 4; ++h) {
    const int k = 16 * h + 2 * t;
    const std::uint32_t nibbles[8] = {code(g, k),     code(g + 8, k),     code(g, k + 8), code(g + 8, k + 8),
                                      code(g, k + 1), code(g + 8, k + 1), code(g, k + 9), code(g + 8, k + 9)};
    std::uint32_t word = 0;
    for (int i = 0; i < 8; ++i) word |= nibbles[i] << (4 * i);
    reinterpret_cast<std::uint32_t*>(tile)[lane * 4 + h] = word;
  }
  if (lane < tile_rows) {
    const int row = first_row + lane % 2 * 8 + lane / 2;
    std::uint32_t pair = 0;
    if (row < rows.rows) pair = rows.scales[static_cast<std::size_t>(row) * groups + group];
    if (plane == 1) {
      const float scale = __uint_as_float(pair << 16U) * 16.0F;
      pair = __float_as_uint(scale) >> 16U;
    }
    reinterpret_cast<std::uint32_t*>(tile + tile_code_bytes)[lane] = pair;
  }
}

}  // namespace

void launch_pack_tiles(const StagedRows& rows, std::byte* tiles, cudaStream_t stream) {
  constexpr int warps = threads / 32;
  const int count = tiles_of_rows(rows.rows) * tiles_of_columns(rows.columns);
  pack_tiles<<<(count + warps - 1) / warps, threads, 0, stream>>>(rows, tiles);
  check(cudaGetLastError(), "launching the packing of weights");
}

void launch_pack_pairs(const std::uint16_t* scales, const std::uint16_t* biases, std::uint32_t* pairs,
                       int count, cudaStream_t stream) {
  pack_pairs<<<(count + threads - 1) / threads, threads, 0, stream>>>(scales, biases, pairs, count);
  check(cudaGetLastError(), "launching the packing of scales");
}

void launch_pack_planes(const ByteRows& rows, std::byte* tiles, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(tiles_of_columns(rows.columns)),
                    static_cast<unsigned>(code_planes * tiles_of_rows(rows.rows)));
  pack_planes<<<blocks, 32, 0, stream>>>(rows, tiles);
  check(cudaGetLastError(), "packing the router");
}

}  // namespace calla::cuda
