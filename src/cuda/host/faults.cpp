#include "cuda/host/faults.h"

#include <fmt/format.h>

#include "model/backend.h"

namespace calla::cuda {
namespace {

constexpr int least_major = 8;

std::string_view advice(FaultKind kind) {
  switch (kind) {
    case FaultKind::out_of_memory:
      return "close other programs that use it, or ask for a shorter --context or fewer --slots";
    case FaultKind::driver:
      return "update the NVIDIA driver, or run with --backend cpu";
    case FaultKind::other_driver:
      return "restart the machine, so that the driver that was installed last is loaded";
    case FaultKind::busy:
      return "close the program that uses it, or let it serve several with nvidia-smi -c DEFAULT";
    case FaultKind::not_ready:
      return "start the service nvidia-fabricmanager";
    case FaultKind::no_device:
      return "run with --backend cpu";
    case FaultKind::no_code:
      return "build with -DCMAKE_CUDA_ARCHITECTURES set to its compute capability, or run with --backend cpu";
    default:
      return "start calla again; if it happens again, look at the system's log for the GPU's own report";
  }
}

/// 12040: "12.4".
std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

std::string reason_of(const Fault& fault, const Probe& probe) {
  const std::string name = probe.name.empty() ? "the NVIDIA GPU" : probe.name;
  switch (fault.kind) {
    case FaultKind::no_device:
      return "there is no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it";
    case FaultKind::driver:
      if (probe.driver == 0) return "there is no NVIDIA driver";
      return fmt::format("the NVIDIA driver serves CUDA {}, and this program needs {}: update the driver",
                         version(probe.driver), version(probe.runtime));
    case FaultKind::out_of_memory:
      return name + " has no memory left: close other programs that use it";
    default:
      return fmt::format("{} cannot be used: {}; {}", name, fault.words, advice(fault.kind));
  }
}

}  // namespace

void throw_fault(const Fault& fault, std::string_view doing) {
  const std::string problem = fmt::format("failed while {}: {}", doing, fault.words);
  if (fault.kind == FaultKind::lost) throw DeviceLost("the GPU", problem, advice(fault.kind));
  throw Error("the GPU", problem, advice(fault.kind));
}

std::string reason_against(const Probe& probe) {
  // Asking an old GPU for code or memory may fail in other ways.
  if (!probe.name.empty() && probe.major < least_major) {
    return fmt::format("{} is of compute capability {}.{}, and {}.0 is needed", probe.name, probe.major,
                       probe.minor, least_major);
  }
  if (probe.fault) return reason_of(*probe.fault, probe);
  if (probe.devices == 0) return reason_of({.kind = FaultKind::no_device, .words = {}}, probe);
  if (!probe.has_code) {
    return fmt::format(
        "this program has no code for {}, which is of compute capability {}.{}: build it with "
        "-DCMAKE_CUDA_ARCHITECTURES={}{}-real",
        probe.name, probe.major, probe.minor, probe.major, probe.minor);
  }
  return {};
}

}  // namespace calla::cuda
