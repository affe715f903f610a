// What the CUDA runtime reports, in words that a person can act on.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace calla::cuda {

/// Faults by what there is to be done about them.
enum class FaultKind {
  out_of_memory,
  driver,        // there is none, or one older than this program's CUDA
  other_driver,  // its library and its kernel module are of different versions
  no_device,
  busy,       // or set to serve one program alone
  not_ready,  // the service that connects GPUs does not run
  no_code,    // this program was built for other GPUs
  lost,       // no call of this process will succeed any more
  other,
};

struct Fault {
  FaultKind kind = FaultKind::other;
  std::string words;  // CUDA's own
};

/// Throws DeviceLost for FaultKind::lost, and Error for others, with what was being done.
[[noreturn]] void throw_fault(const Fault& fault, std::string_view doing);

/// What the runtime said when it was asked for the GPU. What comes after a fault was not asked for.
struct Probe {
  std::optional<Fault> fault;
  int driver = 0;   // the newest CUDA that the driver serves: 13000 is 13.0; 0: there is no driver
  int runtime = 0;  // the CUDA of this program
  int devices = 0;
  std::string name;
  int major = 0;  // of the compute capability
  int minor = 0;
  bool has_code = false;  // this program has code for it
  std::uint64_t memory = 0;
  std::uint64_t available = 0;
};

/// Why the GPU cannot be used, on one line; empty where it can.
std::string reason_against(const Probe& probe);

}  // namespace calla::cuda
