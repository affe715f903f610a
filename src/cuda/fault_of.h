// The runtime's error codes as faults.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/host/faults.h"

namespace calla::cuda {

/// Of any status but cudaSuccess.
Fault fault_of(cudaError_t status);

}  // namespace calla::cuda
