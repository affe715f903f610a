// Runs the built program as a person's shell would.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace calla::test {

struct ProgramResult {
  int code = 0;     // exit code; 128 + n when signal n ended it
  std::string out;  // standard output
  std::string err;  // standard error, without the line that says that a GPU is missing
};

/// `input` becomes standard input. The environment has no CALLA_MODEL.
ProgramResult run_calla(const std::vector<std::string>& arguments, std::string_view input = {});

}  // namespace calla::test
