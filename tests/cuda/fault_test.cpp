// What the runtime reports, and what becomes of it.
#include <cstdio>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "cuda/backend.h"
#include "cuda/device.h"
#include "cuda/sample.h"
#include "model/backend.h"

namespace calla::cuda {
namespace {

TEST(CudaFault, NothingIsWrongWithThisGpu) {
  const Device device = find_device();
  EXPECT_EQ(device.reason, "");
  EXPECT_NE(device.name, "");
  EXPECT_GT(device.available, 0U);
  EXPECT_LE(device.available, device.memory);
}

TEST(CudaFault, AWrongCallIsNoLoss) {
  try {
    check(cudaMemset(nullptr, 0, 4), "writing nowhere");
    FAIL() << "it was written";
  } catch (const DeviceLost& fault) {
    FAIL() << fault.what();
  } catch (const Error& fault) {
    EXPECT_TRUE(std::string(fault.what()).starts_with("the GPU: failed while writing nowhere: "));
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the next launch is not blamed for it";
  EXPECT_NO_THROW(DeviceArray<int>(1));
}

TEST(CudaFault, WhatDoesNotFitIsRefusedWithItsNumbers) {
  try {
    DeviceArray<std::byte>(std::size_t{1} << 50U);
    FAIL() << "it was given";
  } catch (const OutOfMemory& fault) {
    EXPECT_NE(std::string(fault.what()).find("has no room for 1126 TB"), std::string::npos) << fault.what();
    EXPECT_NE(std::string(fault.what()).find(" are free"), std::string::npos) << fault.what();
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

/// In a process of its own, for which it is the end.
TEST(CudaFaultDeathTest, AWrongAddressLosesTheDevice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto write_to_a_wrong_address = [] {
    const Stream stream = make_stream();
    auto* const nowhere = reinterpret_cast<int*>(std::uintptr_t{4096});
    try {
      launch_place_slot(nowhere, nowhere, 0, stream.get());
      check(cudaStreamSynchronize(stream.get()), "placing a slot");
    } catch (const DeviceLost& fault) {
      std::fputs(fault.what(), stderr);
      // Whatever is asked now, the answer is the same.
      EXPECT_THROW(DeviceArray<int>(1), DeviceLost);
      _exit(testing::Test::HasFailure() ? 1 : 3);
    }
    _exit(0);
  };
  EXPECT_EXIT(write_to_a_wrong_address(), testing::ExitedWithCode(3),
              "the GPU: failed while placing a slot: an illegal memory access");
}

}  // namespace
}  // namespace calla::cuda
