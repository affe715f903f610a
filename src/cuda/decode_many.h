// The functions of decode.h for more than four rows; they call these.
#pragma once
#include "cuda/decode.h"

namespace calla::cuda {

template <class Model>
void many_project(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows);

template <class Model>
void many_output(cudaStream_t stream, const DeviceLayer& layer, bool is_attention, const DecodeState& state,
                 int rows);

template <class Model>
void many_experts(cudaStream_t stream, const DeviceLayer& layer, const DecodeState& state, int rows);

template <class Model>
void many_head(cudaStream_t stream, const DeviceWeights& weights, const DecodeState& state, int rows);

}  // namespace calla::cuda
