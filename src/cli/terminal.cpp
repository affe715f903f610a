#include "cli/terminal.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <system_error>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "text/utf8.h"

namespace calla::cli {
namespace {
// A signal handler can reach nothing but a variable of this kind.
volatile std::sig_atomic_t interrupted = 0;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

extern "C" void note_interrupt(int /*signal*/) { interrupted = 1; }

void on_signal(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;  // no SA_RESTART: a read of the keyboard must return
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}
}  // namespace

bool is_terminal(int descriptor) { return isatty(descriptor) == 1; }

Style::Style(int descriptor) {
  if (!is_terminal(descriptor)) return;
  erase_line = "\r\x1b[2K";
  if (std::getenv("NO_COLOR") != nullptr) return;  // NOLINT(concurrency-mt-unsafe)
  dim = "\x1b[2m";
  bold = "\x1b[1m";
  red = "\x1b[31m";
  reset = "\x1b[0m";
}

ProgressBar::ProgressBar(std::string label) : label_(std::move(label)) {}

ProgressBar::~ProgressBar() {
  if (shown_ >= 0) put(STDERR_FILENO, Style(STDERR_FILENO).erase_line);
}

void ProgressBar::draw(std::uint64_t done, std::uint64_t total, std::string_view note) {
  if (!is_terminal(STDERR_FILENO) || total == 0) return;
  const int per_mille = static_cast<int>(done * 1000 / total);
  if (per_mille == shown_) return;
  shown_ = per_mille;
  constexpr int width = 24;
  const int filled = per_mille * width / 1000;
  std::string bar;
  for (int i = 0; i < width; ++i) bar += i < filled ? "━" : " ";
  const Style style(STDERR_FILENO);
  put(STDERR_FILENO, fmt::format("{}{} {}▕{}▏ {:3} %  {}{}", style.erase_line, label_, style.dim, bar,
                                 per_mille / 10, note, style.reset));
}

InterruptGuard::InterruptGuard() {
  interrupted = 0;
  on_signal(SIGINT, note_interrupt);
}

InterruptGuard::~InterruptGuard() { on_signal(SIGINT, SIG_DFL); }

bool InterruptGuard::take() {
  const bool pressed = interrupted != 0;
  interrupted = 0;
  return pressed;
}

StopSignals::StopSignals() {
  interrupted = 0;
  for (const int signal : {SIGINT, SIGTERM}) on_signal(signal, note_interrupt);
}

StopSignals::~StopSignals() {
  for (const int signal : {SIGINT, SIGTERM}) on_signal(signal, SIG_DFL);
}

bool StopSignals::arrived() { return interrupted != 0; }

void put(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw Error("output", std::error_code(errno, std::generic_category()).message());
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string read_standard_input() {
  std::string text;
  std::array<char, 65536> buffer{};
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error("standard input", std::error_code(errno, std::generic_category()).message());
    if (count == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  if (const std::size_t at = first_invalid_utf8(text); at < text.size()) {
    throw Error("standard input", fmt::format("is not UTF-8 at byte {}", at),
                "convert it, for example with iconv");
  }
  return text;
}

}  // namespace calla::cli
