#include "cli/line_reader.h"

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include <unistd.h>

#include "cli/terminal.h"

namespace calla::cli {

LineEnd LineReader::read(std::string& line) {
  for (;;) {
    if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return LineEnd::complete;
    }
    std::array<char, 4096> bytes{};
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) {
      buffer_.clear();
      return LineEnd::interrupted;
    }
    if (count <= 0) {
      if (buffer_.empty()) return LineEnd::closed;
      line = std::exchange(buffer_, {});
      return LineEnd::complete;
    }
    buffer_.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

LineEnd LineReader::read_message(std::string& message, std::string_view first, std::string_view more) {
  constexpr std::string_view fence = "\"\"\"";
  const auto ask = [](std::string_view prompt) {
    if (is_terminal(STDIN_FILENO)) put(STDOUT_FILENO, prompt);
  };
  message.clear();
  std::string line;
  ask(first);
  LineEnd end = read(line);
  const bool fenced = end == LineEnd::complete && line == fence;
  while (end == LineEnd::complete) {
    if (fenced) {
      ask(more);
      end = read(line);
      if (end != LineEnd::complete || line == fence) break;
      message += (message.empty() ? "" : "\n") + line;
    } else {
      const bool goes_on = line.ends_with('\\');
      message += goes_on ? line.substr(0, line.size() - 1) + "\n" : line;
      if (!goes_on) break;
      ask(more);
      end = read(line);
    }
  }
  // What was typed before the input closed still counts.
  return end == LineEnd::closed && !message.empty() ? LineEnd::complete : end;
}

}  // namespace calla::cli
