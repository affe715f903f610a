#include "cli/processor.h"

#include <array>
#include <fstream>

#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

namespace calla::cli {

std::string processor_name() {
#ifdef __APPLE__
  std::array<char, 256> name{};
  std::size_t size = name.size();
  const bool known = ::sysctlbyname("machdep.cpu.brand_string", name.data(), &size, nullptr, 0) == 0;
  return known ? name.data() : "Apple silicon";
#else
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
#endif
}

}  // namespace calla::cli
