// The mixers of decode.h where rows are neighbouring tokens of one sequence; its functions call these.
#pragma once
#include "cuda/decode.h"

namespace calla::cuda {

template <class Model>
void sequence_delta(cudaStream_t stream, const DeviceLayer& layer, int delta_layer, const DecodeState& state,
                    int rows);

}  // namespace calla::cuda
