// What a row of a decode step is.
#pragma once
#include "cuda/decode.h"

namespace calla::cuda {

/// The position of a row's token. It was settled before the step's first layer.
__device__ inline int position_of(const DecodeState& state, int row, int slot) {
  return state.positions[slot] - 1 - (state.sequence ? state.behind[row] : 0);
}

}  // namespace calla::cuda
