// Device memory of the tests' values.
#pragma once
#include <cstddef>
#include <vector>

#include <cuda_runtime.h>

#include "cuda/device.h"

namespace calla::cuda {

template <class T>
DeviceArray<T> on_device(const std::vector<T>& values) {
  DeviceArray<T> array(values.size());
  upload(array.data(), values.data(), array.bytes());
  return array;
}

/// After all that has been launched.
template <class T>
std::vector<T> on_host(const T* data, std::size_t count) {
  check(cudaDeviceSynchronize(), "waiting");
  std::vector<T> values(count);
  download(values.data(), data, count * sizeof(T));
  return values;
}
template <class T>
std::vector<T> on_host(const DeviceArray<T>& array) {
  return on_host<T>(array.data(), array.size());
}

/// Every byte 0xFF: not a number, in half and in float.
template <class T>
DeviceArray<T> poisoned(std::size_t count) {
  DeviceArray<T> array(count);
  check(cudaMemset(array.data(), 0xFF, array.bytes()), "poisoning");
  return array;
}

}  // namespace calla::cuda
