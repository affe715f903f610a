// The arguments of a call as one JSON object, written piece by piece while the parameters arrive.
#pragma once
#include <set>
#include <string>
#include <string_view>

#include "text/event_writer.h"
#include "text/tool_schema.h"
#include "text/utf8.h"

namespace calla {

/// Parameters follow each other: begin_value, write..., end_value. The pieces, joined, are `{"name": value,
/// ...}`.
class CallArguments {
 public:
  CallArguments(const ToolSet& tools, int index) : tools_(&tools), index_(index) {}

  /// Of a name that comes again the first value stays; the later ones are taken and not written.
  void begin_value(std::string_view tool, std::string_view parameter, EventWriter& events);
  /// Takes the next bytes of the value. A string goes out at once, but for what may not belong to it: a final
  /// newline, and the beginning of a code point.
  void write(std::string_view bytes, EventWriter& events);
  void end_value(EventWriter& events);
  /// Closes the object.
  void end(EventWriter& events) const;

 private:
  enum class Mode { streamed, converted, ignored };
  void append(std::string_view bytes, EventWriter& events);

  const ToolSet* tools_;
  int index_;
  std::set<std::string, std::less<>> names_;
  std::string tool_;
  std::string parameter_;
  std::string value_;  // of a parameter that is converted when it is complete
  Utf8Assembler assembler_;
  Mode mode_ = Mode::streamed;
  bool at_value_begin_ = true;
  bool holds_newline_ = false;
};

}  // namespace calla
