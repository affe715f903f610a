// Which bytes of the checkpoint's files lie together, and whether they can be used where they are.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "model/weights.h"

namespace calla::metal {

/// Bytes of tensors of one file with little between them.
struct Stretch {
  std::span<const std::byte> bytes;               // from the first tensor to the end of the last
  std::vector<std::span<const std::byte>> parts;  // the tensors, in the order of their addresses
  bool aligned = true;  // every tensor as kernels need it: words on 16 bytes, bfloat16 on 2
};

/// All quantised tensors that the backend uses, as stretches of at most `most_bytes` each, unless one tensor
/// has more.
std::vector<Stretch> find_stretches(const Weights& weights, std::size_t most_bytes);

}  // namespace calla::metal
