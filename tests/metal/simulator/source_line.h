// Where in the kernels' source an instruction came from.
#pragma once
#include <string>

namespace calla::metal::simulation {

/// File and line of the instruction before this address, as the debugging information has them, or nothing.
std::string source_line(const void* return_address);

}  // namespace calla::metal::simulation
