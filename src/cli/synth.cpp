// calla synth: a checkpoint of made-up weights.
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/synthetic_files.h"
#include "cli/commands.h"
#include "cli/open.h"
#include "cli/synthetic_flag.h"
#include "cli/terminal.h"
#include "model/memory_plan.h"

namespace calla::cli {

void synth(const SynthFlags& flags) {
  const Shape shape =
      parse_synthetic(flags.layers ? fmt::format("{}:{}", flags.shape, *flags.layers) : flags.shape);
  const InterruptGuard interrupt;
  std::uint64_t written = 0;
  {
    ProgressBar bar("Writing " + flags.directory);
    write_synthetic(shape, demo_directory(), flags.directory, [&](std::uint64_t done, std::uint64_t total) {
      if (InterruptGuard::take()) throw Error(flags.directory, "was interrupted; nothing is left of it");
      bar.draw(done, total, fmt::format("{} of {}", format_bytes(done), format_bytes(total)));
      written = done;
    });
  }
  put(STDOUT_FILENO, fmt::format("{}: {} of made-up weights\n", flags.directory, format_bytes(written)));
}

}  // namespace calla::cli
