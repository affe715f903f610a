// What memory this process holds, as the system counts it.
#pragma once
#include <cstdint>
#include <optional>

namespace calla::cli {

struct ProcessMemory {
  std::uint64_t resident = 0;     // bytes
  double large_page_share = 0.0;  // of its anonymous memory, the share that lies in pages of 2 MiB
};

/// Nothing where the system does not say (only Linux does).
std::optional<ProcessMemory> process_memory();

}  // namespace calla::cli
