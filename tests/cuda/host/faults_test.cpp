#include "cuda/host/faults.h"

#include <gtest/gtest.h>

#include "model/backend.h"

namespace calla::cuda {
namespace {

/// A GPU with which nothing is wrong.
Probe good() {
  return {.fault = {},
          .driver = 13000,
          .runtime = 13000,
          .devices = 1,
          .name = "NVIDIA H200",
          .major = 9,
          .minor = 0,
          .has_code = true,
          .memory = 1000,
          .available = 900};
}

Probe with_fault(FaultKind kind, const std::string& words = "in CUDA's words") {
  Probe probe = good();
  probe.fault = Fault{.kind = kind, .words = words};
  return probe;
}

TEST(Faults, AGoodGpuIsUsed) { EXPECT_EQ(reason_against(good()), ""); }

TEST(Faults, WhatIsWrongWithTheDriver) {
  Probe none = with_fault(FaultKind::driver);
  none.name.clear();
  none.driver = 0;
  EXPECT_EQ(reason_against(none), "there is no NVIDIA driver");
  Probe old = with_fault(FaultKind::driver);
  old.name.clear();
  old.driver = 12040;
  EXPECT_EQ(reason_against(old),
            "the NVIDIA driver serves CUDA 12.4, and this program needs 13.0: update the driver");
  Probe other = with_fault(FaultKind::other_driver);
  other.name.clear();
  EXPECT_EQ(
      reason_against(other),
      "the NVIDIA GPU cannot be used: in CUDA's words; restart the machine, so that the driver that was "
      "installed last is loaded");
}

TEST(Faults, WhereThereIsNoGpu) {
  Probe hidden = with_fault(FaultKind::no_device);
  EXPECT_EQ(reason_against(hidden), "there is no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it");
  Probe none = good();
  none.devices = 0;
  EXPECT_EQ(reason_against(none), reason_against(hidden));
}

TEST(Faults, AGpuThatIsTooOldOrNotBuiltFor) {
  Probe old = good();
  old.name = "Tesla T4";
  old.major = 7;
  old.minor = 5;
  old.has_code = false;
  EXPECT_EQ(reason_against(old), "Tesla T4 is of compute capability 7.5, and 8.0 is needed");
  old.fault = Fault{};
  EXPECT_EQ(reason_against(old), "Tesla T4 is of compute capability 7.5, and 8.0 is needed")
      << "whatever else is wrong with it";
  Probe other = good();
  other.name = "NVIDIA Thor";
  other.major = 11;
  other.has_code = false;
  EXPECT_EQ(reason_against(other),
            "this program has no code for NVIDIA Thor, which is of compute capability 11.0: build it with "
            "-DCMAKE_CUDA_ARCHITECTURES=110-real");
}

TEST(Faults, AGpuThatOthersHave) {
  EXPECT_EQ(reason_against(with_fault(FaultKind::out_of_memory)),
            "NVIDIA H200 has no memory left: close other programs that use it");
  EXPECT_EQ(
      reason_against(with_fault(FaultKind::busy)),
      "NVIDIA H200 cannot be used: in CUDA's words; close the program that uses it, or let it serve several "
      "with nvidia-smi -c DEFAULT");
}

TEST(Faults, EveryReasonIsOneLineThatSaysWhatToDo) {
  for (const FaultKind kind : {FaultKind::not_ready, FaultKind::no_code, FaultKind::lost, FaultKind::other}) {
    const std::string reason = reason_against(with_fault(kind));
    EXPECT_EQ(reason.find('\n'), std::string::npos) << reason;
    EXPECT_TRUE(reason.starts_with("NVIDIA H200 cannot be used: in CUDA's words; ")) << reason;
  }
}

TEST(Faults, ALostDeviceIsToldFromOtherFaults) {
  const std::string line =
      "the GPU: failed while computing the next token: an illegal memory access; start calla again; if it "
      "happens again, look at the system's log for the GPU's own report";
  try {
    throw_fault({.kind = FaultKind::lost, .words = "an illegal memory access"}, "computing the next token");
  } catch (const DeviceLost& fault) {
    EXPECT_EQ(fault.what(), line);
  }
  for (const FaultKind kind : {FaultKind::out_of_memory, FaultKind::other, FaultKind::no_code}) {
    try {
      throw_fault({.kind = kind, .words = "a fault"}, "copying");
    } catch (const DeviceLost&) {
      FAIL() << "the process goes on";
    } catch (const OutOfMemory&) {
      FAIL() << "of which nobody knows that nothing has changed";
    } catch (const Error& fault) {
      EXPECT_TRUE(std::string(fault.what()).starts_with("the GPU: failed while copying: a fault; "));
    }
  }
}

}  // namespace
}  // namespace calla::cuda
