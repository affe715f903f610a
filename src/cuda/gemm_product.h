// The product that the functions of gemm.h ask for, and the two kernels that compute it.
#pragma once
#include <cstddef>

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "cuda/gemm.h"

namespace calla::cuda {

/// What becomes of the sums.
enum class Epilogue { store, add, swiglu };

struct Product {
  const std::byte* weights = nullptr;
  std::size_t expert_bytes = 0;
  int matrices = 1;  // experts
  int rows = 0;
  int groups = 0;  // of 64 columns

  const __half* x = nullptr;
  const int* sources = nullptr;      // row of x for each route; null: the route's own number
  const TokenTile* tiles = nullptr;  // null: the tokens 0 .. tokens - 1
  const int* tile_count = nullptr;
  int* queue = nullptr;  // of tiles (RouteTiles)
  int tokens = 0;
  int token_share = 0;  // of them for a tile; the launch sets it

  __half* y = nullptr;  // store, swiglu
  int stride = 0;
  float scale = 1;
  float* tail = nullptr;  // store: rows from `split` on
  int split = 0;
  float* residual = nullptr;  // add
};

/// The kernel for GPUs from sm_80 on, and that for Hopper.
template <Epilogue epilogue>
void launch_mma(Product product, cudaStream_t stream);
template <Epilogue epilogue>
void launch_wgmma(Product product, cudaStream_t stream);

}  // namespace calla::cuda
