// Products of quantised matrices with one to four rows x of the decode pass, by a SIMD-group.
//
//   y = sum over groups of s (sum q x) + b (sum x)
//
// Lanes take neighbouring chunks of 16 bytes of a row of the matrix, of ROWS rows at once, and ROWS * R sums
// stay in each. A chunk's part of a result is s (sum q x) + b (sum x) over its columns: four sums, of every
// fourth column, added up. The parts add up in a lane from chunk to chunk, and then over the lanes: an order
// that neither R nor ROWS changes.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/affine.h"
#include "metal/kernels/residual.h"
#include "metal/kernels/shape.h"

using namespace metal;

namespace calla_kernels {

/// A value for each of ROWS rows of a matrix and R rows of x.
template <uint ROWS, uint R>
struct Sums {
  float of[ROWS][R];
};

template <uint ROWS, uint R>
inline void clear(thread Sums<ROWS, R>& sums) {
#pragma clang loop unroll(full)
  for (uint i = 0; i < ROWS; ++i)
#pragma clang loop unroll(full)
    for (uint r = 0; r < R; ++r) sums.of[i][r] = 0.0f;
}

template <uint ROWS, uint R>
inline void add(thread Sums<ROWS, R>& sums, thread const Sums<ROWS, R>& parts) {
#pragma clang loop unroll(full)
  for (uint i = 0; i < ROWS; ++i)
#pragma clang loop unroll(full)
    for (uint r = 0; r < R; ++r) sums.of[i][r] += parts.of[i][r];
}

inline float sum_of(float4 x) { return (x.x + x.y) + (x.z + x.w); }

/// A row of a matrix.
template <uint BITS, uint COLUMNS>
struct Row {
  enum : uint { chunks = COLUMNS / Codes<BITS>::chunk_columns };
};

/// A chunk of ROWS rows.
template <uint ROWS>
struct Chunk {
  uint4 words[ROWS];
  float scales[ROWS];
  float biases[ROWS];
};

/// Makes chunk `index` of a matrix's row the i-th of `chunk`.
template <uint BITS, uint COLUMNS, uint ROWS>
inline void load(thread Chunk<ROWS>& chunk, uint i, thread const Matrix& matrix, uint row, uint index) {
  const uint place = row * (COLUMNS / group) + index / Codes<BITS>::group_chunks;
  chunk.words[i] = matrix.words[row * Row<BITS, COLUMNS>::chunks + index];
  chunk.scales[i] = bf16_to_float(matrix.scales[place]);
  chunk.biases[i] = bf16_to_float(matrix.biases[place]);
}

/// The parts of the results that a chunk of `index` has. x has rows of COLUMNS.
template <uint BITS, uint COLUMNS, uint ROWS, uint R>
inline void multiply(thread Sums<ROWS, R>& parts,
                     thread const Chunk<ROWS>& chunk,
                     device const float* x,
                     uint index) {
  device const float4* quads = (device const float4*)x + index * Codes<BITS>::chunk_quads;
  float4 dots[ROWS][R];
  float x_sums[R];
#pragma clang loop unroll(full)
  for (uint r = 0; r < R; ++r) {
    x_sums[r] = 0.0f;
#pragma clang loop unroll(full)
    for (uint i = 0; i < ROWS; ++i) dots[i][r] = float4(0.0f);
  }
#pragma clang loop unroll(full)
  for (uint quad = 0; quad < Codes<BITS>::chunk_quads; ++quad) {
    float4 factors[R];
#pragma clang loop unroll(full)
    for (uint r = 0; r < R; ++r) {
      const float4 values = quads[r * (COLUMNS / 4) + quad];
      x_sums[r] += sum_of(values);
      factors[r] = values * Codes<BITS>::factors();
    }
#pragma clang loop unroll(full)
    for (uint i = 0; i < ROWS; ++i) {
      const float4 codes = Codes<BITS>::quad(chunk.words[i], quad);
#pragma clang loop unroll(full)
      for (uint r = 0; r < R; ++r) dots[i][r] = fma(codes, factors[r], dots[i][r]);
    }
  }
#pragma clang loop unroll(full)
  for (uint r = 0; r < R; ++r)
#pragma clang loop unroll(full)
    for (uint i = 0; i < ROWS; ++i)
      parts.of[i][r] = fma(chunk.scales[i], sum_of(dots[i][r]), chunk.biases[i] * x_sums[r]);
}

/// Adds rows row .. row + ROWS - 1 of a matrix times x to the lane's sums: its chunks, every LANES-th from
/// `place` on.
template <uint BITS, uint COLUMNS, uint LANES, uint ROWS, uint R>
inline void add_product(
    thread Sums<ROWS, R>& sums, thread const Matrix& matrix, uint row, device const float* x, uint place) {
  const uint chunks = Row<BITS, COLUMNS>::chunks;
#pragma clang loop unroll(full)
  for (uint first = 0; first < chunks; first += LANES) {
    const uint index = first + place;
    if (first + LANES > chunks && index >= chunks) continue;
    Chunk<ROWS> chunk;
#pragma clang loop unroll(full)
    for (uint i = 0; i < ROWS; ++i) load<BITS, COLUMNS>(chunk, i, matrix, row + i, index);
    Sums<ROWS, R> parts;
    multiply<BITS, COLUMNS>(parts, chunk, x, index);
    add(sums, parts);
  }
}

/// Every lane gets the sums of all.
template <uint ROWS, uint R>
inline void add_lanes(thread Sums<ROWS, R>& sums) {
#pragma clang loop unroll(full)
  for (uint i = 0; i < ROWS; ++i)
#pragma clang loop unroll(full)
    for (uint r = 0; r < R; ++r) sums.of[i][r] = simd_sum(sums.of[i][r]);
}

/// Rows of a matrix that a lane has in hand at once: as many as its registers take.
template <uint R>
struct RowsAtOnce {
  enum : uint { value = R == 4 ? 2 : 4 };
};

/// 1 / sqrt(mean h^2 + epsilon) for each row of the residual stream: what makes products with u = h * gain
/// into products with the norm of h.
template <uint R>
struct NormScales {
  float of[R];
};

template <uint R>
inline void load(thread NormScales<R>& scales, device const float* square_sums, uint lane) {
  const uint quads = stream_sums / 4;
#pragma clang loop unroll(full)
  for (uint r = 0; r < R; ++r) {
    device const float4* row = (device const float4*)square_sums + r * quads;
    float sum = 0.0f;
    for (uint i = lane; i < quads; i += 32) sum += sum_of(row[i]);
    scales.of[r] = precise::rsqrt(simd_sum(sum) / float(hidden) + 1e-6f);
  }
}

}  // namespace calla_kernels
