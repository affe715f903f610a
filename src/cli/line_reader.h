// Lines typed by a person.
#pragma once
#include <string>
#include <string_view>

namespace calla::cli {

enum class LineEnd { complete, interrupted, closed };

/// Reads standard input line by line with the terminal's own editing.
class LineReader {
 public:
  /// Waits for a line, without its end. `interrupted`: Ctrl-C was pressed; `closed`: there is no more.
  LineEnd read(std::string& line);

  /// One message: a line; or several, each but the last ending in a backslash; or all lines between two lines
  /// of """. Prints the prompts `first` and `more` on a terminal.
  LineEnd read_message(std::string& message, std::string_view first, std::string_view more);

 private:
  std::string buffer_;  // read and not yet given out
};

}  // namespace calla::cli
