#include "model/backend.h"

namespace calla {

Error not_a_number() {
  return Error("the model", "computed a value that is not a number",
               "the checkpoint's files are damaged, or the memory is: compare their checksums");
}

std::size_t Snapshot::bytes() const {
  std::size_t sum = 0;
  for (const MemoryPiece& piece : memory()) sum += piece.bytes;
  return sum;
}

}  // namespace calla
