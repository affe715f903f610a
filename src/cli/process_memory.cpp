#include "cli/process_memory.h"

#include <fstream>
#include <string>

namespace calla::cli {

std::optional<ProcessMemory> process_memory() {
  // Lines of "Name:   123 kB", after a first one that names the range.
  std::ifstream file("/proc/self/smaps_rollup");
  std::string line;
  std::getline(file, line);
  std::uint64_t resident = 0;
  std::uint64_t anonymous = 0;
  std::uint64_t large = 0;
  std::string name;
  std::uint64_t kilobytes = 0;
  while (file >> name >> kilobytes && std::getline(file, line)) {
    if (name == "Rss:") resident = kilobytes;
    if (name == "Anonymous:") anonymous = kilobytes;
    if (name == "AnonHugePages:") large = kilobytes;
  }
  if (resident == 0 || anonymous == 0) return std::nullopt;
  constexpr std::uint64_t kilobyte = 1024;
  return ProcessMemory{.resident = resident * kilobyte,
                       .large_page_share = static_cast<double>(large) / static_cast<double>(anonymous)};
}

}  // namespace calla::cli
