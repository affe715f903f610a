// Kernels that measure the machine: their extents, for the host and the kernels.
#pragma once

namespace calla_kernels {

enum : unsigned {
  read_threads = 256,
  product_threads = 128,
  product_chains = 8,  // products under way at once in a SIMD-group
};

struct ReadArguments {
  unsigned count;  // of uint4
};

struct ProductArguments {
  unsigned rounds;  // of product_chains products each
};

}  // namespace calla_kernels
