#include "cli/processor.h"

#include <fstream>

namespace calla::cli {

std::string processor_name() {
#ifdef __APPLE__
  return "Apple silicon";
#else
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
#endif
}

}  // namespace calla::cli
