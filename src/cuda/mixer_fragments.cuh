// What the prefill mixers share: fragments of m16n8k16 from shared memory and back, and the activations.
//
// A lane of a warp is (g, t) = (lane / 4, lane % 4). An A fragment, 16 x 16, is the uint4 of rows g and g + 8
// at columns 2 t ..+1, then the same at columns 8 further; the accumulators of two neighbouring 16 x 8 tiles,
// rounded, are an A fragment as they are.
#pragma once
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/mixer_ptx.cuh"
#include "cuda/ptx.cuh"

namespace calla::cuda {

__device__ inline std::uint32_t pack_half(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ inline float2 unpack_half(std::uint32_t bits) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}
__device__ inline std::uint32_t pack_bfloat16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

/// Accumulators of the tiles at columns 0 and 8 as an A fragment.
__device__ inline uint4 pack_half(const float (&left)[4], const float (&right)[4]) {
  return {pack_half(left[0], left[1]), pack_half(left[2], left[3]), pack_half(right[0], right[1]),
          pack_half(right[2], right[3])};
}

/// D += A B for the two neighbouring tiles of B's fragments in `b`: {x, y} and {z, w}.
__device__ inline void mma_pair(float (&left)[4], float (&right)[4], const uint4& a, const uint4& b) {
  const std::uint32_t fragment[4] = {a.x, a.y, a.z, a.w};
  mma_16816(left, fragment, b.x, b.y);
  mma_16816(right, fragment, b.z, b.w);
}
__device__ inline void mma_pair_bf16(float (&left)[4], float (&right)[4], const uint4& a, const uint4& b) {
  const std::uint32_t fragment[4] = {a.x, a.y, a.z, a.w};
  mma_16816_bf16(left, fragment, b.x, b.y);
  mma_16816_bf16(right, fragment, b.z, b.w);
}

/// Rows of halves in shared memory with a pitch of an odd number of 16-byte pieces: eight rows of a column
/// lie in different banks.
struct PaddedRows {
  __half* data;
  int pitch;

  /// Where piece `piece` of row `in_row` of the tile at (row, column) lies.
  __device__ std::uint32_t at(int row, int column, int in_row, int piece) const {
    return shared_address(data + (row + in_row) * pitch + column + 8 * piece);
  }
};

/// Rows of 128 halves in shared memory, their 16-byte pieces exchanged by XOR with the row's number mod 8, at
/// an address that is a multiple of 256.
struct SwizzledRows {
  std::uint32_t base;

  /// The same; row and column are multiples of 8 and 16.
  __device__ std::uint32_t at(int row, int column, int in_row, int piece) const {
    return ((base + in_row * 256 + ((piece ^ in_row % 8) << 4)) ^ column * 2) + row * 256;
  }
};

/// A row-major matrix of halves in shared memory, as fragments.
template <class Rows>
struct SharedMatrix {
  Rows rows;

  /// The A fragment of rows row .. +15, columns column .. +15.
  __device__ uint4 a(int row, int column, int lane) const {
    return load_matrices(rows.at(row, column, lane % 16, lane / 16));
  }
  /// The A fragment of the transposed matrix: A's rows are this one's columns column .. +15.
  __device__ uint4 a_transposed(int row, int column, int lane) const {
    return load_matrices_transposed(rows.at(row, column, lane / 16 * 8 + lane % 8, lane / 8 % 2));
  }
  /// The fragments of B whose k runs over rows row .. +15 and n over columns column .. +15.
  __device__ uint4 b(int row, int column, int lane) const {
    return load_matrices_transposed(rows.at(row, column, lane % 16, lane / 16));
  }
  /// The fragments of B whose n runs over rows row .. +15 and k over columns column .. +15.
  __device__ uint4 b_transposed(int row, int column, int lane) const {
    return load_matrices(rows.at(row, column, lane / 16 * 8 + lane % 8, lane / 8 % 2));
  }
};

// Exponentials and activations, to about 2^-21; what they go into is rounded to 2^-12 or 2^-9.
__device__ inline float exp_approximate(float x) { return exp2_approximate(x * 1.44269504F); }
__device__ inline float sigmoid(float x) { return reciprocal_approximate(1.0F + exp_approximate(-x)); }
__device__ inline float silu(float x) { return x * sigmoid(x); }

/// Eight halves times the sigmoid of eight others.
__device__ inline uint4 gated(const uint4& x, const uint4& gate) {
  const auto two = [](std::uint32_t value, std::uint32_t by) {
    const float2 v = unpack_half(value);
    const float2 b = unpack_half(by);
    return pack_half(v.x * sigmoid(b.x), v.y * sigmoid(b.y));
  };
  return {two(x.x, gate.x), two(x.y, gate.y), two(x.z, gate.z), two(x.w, gate.w)};
}

}  // namespace calla::cuda
