// The person's end: colours, a progress bar, Ctrl-C.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace calla::cli {

bool is_terminal(int descriptor);

/// Escape sequences for a descriptor; all empty where it is no terminal or NO_COLOR is set.
struct Style {
  explicit Style(int descriptor);
  std::string_view dim, bold, red, reset;
  std::string_view
      erase_line;  // back to the first column of an empty line; empty only where it is no terminal
};

/// One line on standard error that is redrawn in place; nothing at all where that is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  ~ProgressBar();  // erases it
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// `note` stands behind the bar: "8.72 of 19.5 GB".
  void draw(std::uint64_t done, std::uint64_t total, std::string_view note);

 private:
  std::string label_;
  int shown_ = -1;  // per mille, so that a redraw happens only when something moves
};

/// While it lives, Ctrl-C is noted instead of ending the program. One object at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// Whether Ctrl-C was pressed since the last call.
  static bool take();
};

/// While it lives, Ctrl-C and SIGTERM are noted instead of ending the program. One object at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool arrived();
};

/// Writes to standard output or error at once. Throws Error when that fails (a full disk).
void put(int descriptor, std::string_view text);

/// All of standard input. Throws Error when it is not UTF-8.
std::string read_standard_input();

}  // namespace calla::cli
