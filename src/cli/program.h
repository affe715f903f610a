// The command line: which command, with which flags.
#pragma once

namespace calla::cli {

/// Reads the arguments and does what they say. Throws UsageError for arguments that make no sense, and what
/// the commands throw.
void run_program(int argc, const char* const* argv);

}  // namespace calla::cli
