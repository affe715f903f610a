#pragma once
#include <string>

namespace calla::cli {

/// What the system calls its processor.
std::string processor_name();

}  // namespace calla::cli
