#include "text/call_arguments.h"

#include <utility>

namespace calla {

void CallArguments::begin_value(std::string_view tool, std::string_view parameter, EventWriter& events) {
  at_value_begin_ = true;
  holds_newline_ = false;
  const bool first = names_.empty();
  // Names are compared as they are written: two ill-formed ones may become the same key.
  std::string key = mend_utf8(parameter);
  if (names_.contains(key)) {
    mode_ = Mode::ignored;
    return;
  }
  tool_ = tool;
  parameter_ = parameter;
  mode_ = tools_->is_plain_string(tool, parameter) ? Mode::streamed : Mode::converted;
  std::string piece = first ? "{" : ", ";
  piece += json_string(key) + ": ";
  if (mode_ == Mode::streamed) piece += '"';
  events.call_arguments(index_, piece);
  names_.insert(std::move(key));
}

void CallArguments::write(std::string_view bytes, EventWriter& events) {
  if (bytes.empty()) return;
  if (std::exchange(at_value_begin_, false) && bytes.front() == '\n') bytes.remove_prefix(1);
  if (bytes.empty()) return;
  if (std::exchange(holds_newline_, false)) append("\n", events);
  if (bytes.back() == '\n') {
    holds_newline_ = true;
    bytes.remove_suffix(1);
  }
  append(bytes, events);
}

void CallArguments::append(std::string_view bytes, EventWriter& events) {
  if (mode_ == Mode::streamed) events.call_arguments(index_, json_escaped(assembler_.push(bytes)));
  if (mode_ == Mode::converted) value_.append(bytes);
}

void CallArguments::end_value(EventWriter& events) {
  if (mode_ == Mode::streamed) events.call_arguments(index_, json_escaped(assembler_.finish()) + '"');
  if (mode_ == Mode::converted) {
    events.call_arguments(index_, tools_->convert(tool_, parameter_, std::exchange(value_, {})));
  }
}

void CallArguments::end(EventWriter& events) const {
  events.call_arguments(index_, names_.empty() ? "{}" : "}");
}

}  // namespace calla
