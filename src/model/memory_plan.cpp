#include "model/memory_plan.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"

#ifdef __APPLE__
#include <mach/mach.h>
#endif

namespace calla {
namespace {

/// Unless somebody asks for it, other programs keep most of what is free.
std::uint64_t part(std::uint64_t free) {
  constexpr std::uint64_t most = std::uint64_t{8} << 30U;
  return std::min(free / 4, most);
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> units{"B", "kB", "MB", "GB", "TB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // 999.5 would be printed as "1000".
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, units[unit]);
}

#ifdef __APPLE__
std::optional<std::uint64_t> available_memory() {
  vm_statistics64_data_t statistics{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&statistics),
                        &count) != KERN_SUCCESS) {
    return std::nullopt;
  }
  const std::uint64_t pages =
      std::uint64_t{statistics.free_count} + statistics.inactive_count + statistics.purgeable_count;
  return pages * vm_kernel_page_size;
}
#else
std::optional<std::uint64_t> available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::uint64_t kibibytes = 0;
  std::string unit;
  while (meminfo >> key >> kibibytes) {
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") return kibibytes * 1024;
  }
  return std::nullopt;
}
#endif

SnapshotMemory plan_snapshots(std::optional<std::uint64_t> asked, std::uint64_t left,
                              std::optional<std::uint64_t> host) {
  if (!host) return {.device = asked.value_or(part(left)), .host = 0};
  if (!asked) return {.device = part(left), .host = part(*host)};
  // Even so the device keeps room for what it needs besides, and the machine for all but what cannot move.
  SnapshotMemory memory;
  memory.device = std::min(*asked, left / 4 * 3);
  memory.host = std::min(*asked - memory.device, *host / 4 * 3);
  return memory;
}

void require_fit(const MemoryPlan& plan, std::uint64_t available, std::string_view where) {
  if (plan.total() <= available) return;
  throw Error(
      where,
      fmt::format(
          "the model needs {} ({} weights, {} KV cache for {} x {} tokens, {} state, {} workspace) and {} "
          "are available",
          format_bytes(plan.total()), format_bytes(plan.weights), format_bytes(plan.kv_cache), plan.slots,
          plan.context, format_bytes(plan.states), format_bytes(plan.workspace), format_bytes(available)),
      "close other programs, or choose a smaller --context");
}

}  // namespace calla
