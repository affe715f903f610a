#include "cli/answer_printer.h"

#include <fmt/format.h>
#include <unistd.h>

namespace calla::cli {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

double rate(int tokens, Seconds time) { return time.count() > 0 ? tokens / time.count() : 0; }

}  // namespace

AnswerPrinter::AnswerPrinter(bool show_thinking)
    : out_(STDOUT_FILENO), err_(STDERR_FILENO), show_thinking_(show_thinking) {}

void AnswerPrinter::status(const std::string& line) {
  put(STDERR_FILENO, fmt::format("{}{}{}{}", err_.erase_line, err_.dim, line, err_.reset));
  part_ = Part::status;
}

void AnswerPrinter::enter(Part part) {
  if (part_ == part) return;
  if (part_ == Part::status) put(STDERR_FILENO, err_.erase_line);
  if (part_ == Part::reasoning) put(STDOUT_FILENO, fmt::format("{}\n\n", out_.reset));
  if (part_ == Part::content && part == Part::call) put(STDOUT_FILENO, "\n");
  if (part == Part::reasoning) put(STDOUT_FILENO, out_.dim);
  part_ = part;
}

void AnswerPrinter::print_reasoning(const std::string& text) {
  if (show_thinking_) {
    enter(Part::reasoning);
    put(STDOUT_FILENO, text);
  } else if (is_terminal(STDERR_FILENO)) {
    status(fmt::format("thinking … {}", ++hidden_pieces_));
  }
}

void AnswerPrinter::print(const ChatEvent& event) {
  std::visit(Overloaded{
                 [&](const PromptProgress& progress) {
                   // A short prompt is read before a line could be.
                   if (progress.total > 256 && progress.done < progress.total && is_terminal(STDERR_FILENO)) {
                     status(fmt::format("reading {} of {} tokens", progress.done, progress.total));
                   }
                 },
                 [&](const ChatToken&) {},
                 [&](const ReasoningDelta& delta) { print_reasoning(delta.text); },
                 [&](const ContentDelta& delta) {
                   enter(Part::content);
                   put(STDOUT_FILENO, delta.text);
                   at_line_start_ = delta.text.ends_with('\n');
                 },
                 [&](const ChatToolCall& call) {
                   enter(Part::call);
                   put(STDOUT_FILENO, fmt::format("{}→ {}{} ", out_.bold, call.name, out_.reset));
                   at_line_start_ = false;
                 },
                 [&](const ToolCallArguments& piece) { put(STDOUT_FILENO, piece.json); },
                 [&](const ToolCallEnd&) {
                   put(STDOUT_FILENO, "\n");
                   at_line_start_ = true;
                 },
                 [&](const ToolCallCut&) {},
                 [&](const ChatFinished& finished) {
                   enter(Part::none);
                   if (!at_line_start_) put(STDOUT_FILENO, "\n");
                   print_figures(finished);
                 },
             },
             event);
}

void AnswerPrinter::print_figures(const ChatFinished& finished) {
  if (!is_terminal(STDERR_FILENO)) return;
  const ChatUsage& usage = finished.usage;
  std::string line =
      fmt::format("{} prompt tokens at {:.1f}/s · {} generated at {:.1f}/s", usage.prompt_tokens,
                  rate(usage.prompt_tokens, finished.timing.prefill), usage.completion_tokens,
                  rate(usage.completion_tokens, finished.timing.decode));
  if (usage.reasoning_tokens > 0) line += fmt::format(" ({} thinking)", usage.reasoning_tokens);
  if (finished.end == ChatEnd::length) line += " · cut off by the length limit";
  if (finished.end == ChatEnd::cancelled) line += " · stopped";
  put(STDERR_FILENO, fmt::format("{}{}{}\n", err_.dim, line, err_.reset));
}

}  // namespace calla::cli
