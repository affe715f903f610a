#include <CLI/CLI.hpp>
#include <exception>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
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
    CLI::App program(
        "Calla runs Qwen3.6-35B-A3B, as the MLX 4-bit checkpoint, on this machine.\n"
        "Without --model it runs the small demonstration model that comes with it.",
        "calla");
    program.set_version_flag("--version", CALLA_VERSION);
    program.require_subcommand(0, 1);
    program.footer("calla COMMAND --help describes a command.\n");
    program.get_formatter()->label("SUBCOMMAND", "COMMAND");
    program.get_formatter()->label("Subcommands", "Commands");
    calla::cli::add_run(program);
    calla::cli::add_chat(program);
    calla::cli::add_info(program);
    calla::cli::add_tokenize(program);
    calla::cli::add_detokenize(program);
    calla::cli::add_render(program);
    try {
      program.parse(argc, argv);
      if (program.get_subcommands().empty()) return report("which command? See calla --help", wrong_usage);
    } catch (const CLI::Success& asked) {  // --help, --version
      return program.exit(asked);
    } catch (const CLI::ParseError& fault) {
      return report(fmt::format("{}; see {} --help", fault.what(),
                                program.get_subcommands().empty()
                                    ? "calla"
                                    : "calla " + program.get_subcommands().front()->get_name()),
                    wrong_usage);
    }
    return done;
  } catch (const calla::Error& fault) {
    return report(fault.what(), failed);
  } catch (const std::bad_alloc&) {
    return report("memory: there is not enough; close other programs, or choose a smaller --context", failed);
  } catch (const std::exception& fault) {
    return report(fmt::format("internal error: {}", fault.what()), failed);
  }
}
