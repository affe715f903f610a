#include <exception>
#include <new>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/program.h"
#include "cli/terminal.h"

namespace {
constexpr int done = 0;
constexpr int failed = 1;
constexpr int wrong_usage = 2;

int report(std::string_view problem, int code) {
  const calla::cli::Style style(STDERR_FILENO);
  fmt::print(stderr, "{}calla:{} {}\n", style.red, style.reset, problem);
  return code;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    calla::cli::run_program(argc, argv);
    return done;
  } catch (const calla::cli::UsageError& fault) {
    return report(fault.what(), wrong_usage);
  } catch (const calla::Error& fault) {
    return report(fault.what(), failed);
  } catch (const std::bad_alloc&) {
    return report("memory: there is not enough; close other programs, or choose a smaller --context", failed);
  } catch (const std::exception& fault) {
    return report(fmt::format("internal error: {}", fault.what()), failed);
  }
}
