#include "model/backend.h"

namespace calla {

std::size_t Snapshot::bytes() const {
  std::size_t sum = 0;
  for (const MemoryPiece& piece : memory()) sum += piece.bytes;
  return sum;
}

}  // namespace calla
