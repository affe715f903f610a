// Appends the events of a reply: pieces of one kind that follow each other in one go become one event.
#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "text/reply_parser.h"

namespace calla {

class EventWriter {
 public:
  /// Events that are in `events` already are left as they are.
  explicit EventWriter(std::vector<ReplyEvent>& events) : events_(events), first_(events.size()) {}

  void reasoning(std::string text) { append(ReasoningDelta{std::move(text)}, &ReasoningDelta::text); }
  void content(std::string text) { append(ContentDelta{std::move(text)}, &ContentDelta::text); }
  void call_begin(int index, std::string name) {
    events_.emplace_back(ToolCallBegin{index, std::move(name)});
  }
  void call_arguments(int index, std::string json) {
    append(ToolCallArguments{index, std::move(json)}, &ToolCallArguments::json);
  }
  void call_end(int index) { events_.emplace_back(ToolCallEnd{index}); }
  void call_cut(int index, std::string text) { events_.emplace_back(ToolCallCut{index, std::move(text)}); }

 private:
  // Two calls' arguments never meet here: the end of the first and the beginning of the second lie between.
  template <typename Event>
  void append(Event event, std::string Event::*text) {
    if ((event.*text).empty()) return;
    if (events_.size() > first_) {
      if (auto* last = std::get_if<Event>(&events_.back())) {
        (last->*text) += event.*text;
        return;
      }
    }
    events_.emplace_back(std::move(event));
  }

  std::vector<ReplyEvent>& events_;
  std::size_t first_;
};

}  // namespace calla
