// Threads, threadgroups and arguments of the prefill's products and of its mixture of experts, for the host
// and the kernels. T: tokens of the pass.
//
//   kernel                      threads           grid
//   embed_rows, norm_rows       row_threads       (T)
//   combine                     row_threads       (T)
//   gemm_project_R, gemm_R,     gemm_threads      (tiles(T, R), tiles(outputs, gemm_columns))
//     gemm_add_R, R = 32, 64
//   gemm_router                 gemm_threads      (tiles(T, 32), tiles(experts + 1, gemm_columns))
//   route                       route_threads     (tiles(T, route_rows))
//   sort_pairs                  sort_threads      (1)
//   experts_gate_up_R, R = 16, 32  gemm_threads   (group_blocks(T, R, experts), expert_hidden /
//   gate_up_columns) experts_down_rows_R            gemm_threads   (group_blocks(T, R, experts),
//   tiles(hidden, gemm_columns)) shared_gate_up_R, R = 32, 64   gemm_threads   (tiles(T, R), shared_hidden /
//   gate_up_columns)
//
// With tensor units gemm_tensor_project, gemm_tensor, gemm_tensor_add and shared_gate_up_tensor (tiles of 64
// rows) take the place of both heights, and so do experts_gate_up_tensor and experts_down_rows_tensor (blocks
// of 32): they round otherwise, and a row's result must not depend on the number of rows.
#pragma once

namespace calla_kernels {

enum : unsigned {
  prefill_tokens = 1024,  // of a pass, at most
  row_threads = 256,
  gemm_threads = 128,
  gemm_columns = 64,     // outputs of a tile
  gate_up_columns = 32,  // of gate, and as many of up
  route_threads = 128,
  route_rows = 4,  // rows of a threadgroup of `route`, a SIMD-group each
  sort_threads = 1024,
};

/// out [rows][outputs] from x [rows][columns].
struct GemmArguments {
  unsigned rows;
  unsigned columns;
  unsigned outputs;
};

/// The same of up to four matrices side by side.
struct GemmProjectArguments {
  unsigned rows;
  unsigned columns;
  unsigned ends[4];  // output behind the last one of each matrix
};

struct RowsArguments {
  unsigned rows;
};

struct SortArguments {
  unsigned rows;
  unsigned tile;    // rows of a block at most
  unsigned blocks;  // places of the block map: group_blocks(rows, tile, experts)
};

/// Rows that one expert takes together: `rows` of the sorted pairs from `first` on. None: nothing to do.
struct Block {
  unsigned expert;
  unsigned first;
  unsigned rows;
};

inline unsigned tiles(unsigned count, unsigned of) { return (count + of - 1) / of; }

/// Rows of a tile of a dense product: the tall tile does more with what it loads, unless it is mostly padding
/// or leaves too few threadgroups. A row's result is the same in both. Tensor units have the tall one only.
inline unsigned gemm_tile(unsigned rows, bool tensor_units) {
  const bool mostly_rows = rows > 128 && tiles(rows, 64) * 64 <= tiles(rows, 32) * 36;
  return tensor_units || mostly_rows ? 64 : 32;
}

/// Rows of a block of one expert's, by how many an expert has on the average; 32 with tensor units.
inline unsigned group_tile(unsigned rows, unsigned experts, bool tensor_units) {
  return tensor_units || 8 * rows > 20 * experts ? 32 : 16;
}

/// Blocks that rows * 8 pairs may need: the last one of each expert may be ragged.
inline unsigned group_blocks(unsigned rows, unsigned tile, unsigned experts) {
  const unsigned pairs = 8 * rows;
  return tiles(pairs, tile) + (experts < pairs ? experts : pairs);
}

}  // namespace calla_kernels
