// A reply as it streams onto the screen.
#pragma once
#include <string>

#include "chat/chat.h"
#include "cli/terminal.h"

namespace calla::cli {

/// Content goes to standard output as it comes. Everything else is for the person: the reasoning dimmed, or a
/// live count of its tokens where it is not wanted, tool calls, and one dim line of figures at the end.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(bool show_thinking);

  void print(const ChatEvent& event);

 private:
  enum class Part { none, status, reasoning, content, call };
  void enter(Part part);
  void print_reasoning(const std::string& text);
  void print_figures(const ChatFinished& finished);
  void status(const std::string& line);

  Style out_;
  Style err_;
  bool show_thinking_;
  Part part_ = Part::none;
  bool at_line_start_ = true;
  std::size_t hidden_pieces_ = 0;
};

}  // namespace calla::cli
