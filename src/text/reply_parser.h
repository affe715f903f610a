// What the model writes, taken apart as it arrives: reasoning, content, and tool calls in the model's XML
// form.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/conversation.h"
#include "text/tool_schema.h"

namespace calla {

struct ReasoningDelta {
  std::string text;
  bool operator==(const ReasoningDelta&) const = default;
};
struct ContentDelta {
  std::string text;
  bool operator==(const ContentDelta&) const = default;
};
/// A call has begun; its arguments follow as pieces of JSON text whose concatenation is one JSON object.
struct ToolCallBegin {
  int index = 0;
  std::string name;
  bool operator==(const ToolCallBegin&) const = default;
};
struct ToolCallArguments {
  int index = 0;
  std::string json;
  bool operator==(const ToolCallArguments&) const = default;
};
struct ToolCallEnd {
  int index = 0;
  bool operator==(const ToolCallEnd&) const = default;
};
/// The reply ended inside the call: it must not be executed. `text` is what the model wrote of it, which an
/// answer that is not streamed shows as content.
struct ToolCallCut {
  int index = 0;
  std::string text;
  bool operator==(const ToolCallCut&) const = default;
};
using ReplyEvent =
    std::variant<ReasoningDelta, ContentDelta, ToolCallBegin, ToolCallArguments, ToolCallEnd, ToolCallCut>;

/// How the model's turn ended: by its own end token, or by a limit.
enum class ReplyEnd { stop, length };

/// A state machine over bytes: the events, joined, do not depend on how the reply was cut into pieces. No
/// input is an error; what is not a call is content. Work is linear in the reply.
class ReplyParser {
 public:
  /// `starts_in_reasoning`: the prompt left a <think> block open. Without tools nothing is read as a call.
  ReplyParser(ToolSet tools, bool starts_in_reasoning);
  ~ReplyParser();
  ReplyParser(ReplyParser&&) noexcept;
  ReplyParser& operator=(ReplyParser&&) noexcept;
  ReplyParser(const ReplyParser&) = delete;
  ReplyParser& operator=(const ReplyParser&) = delete;

  /// Takes the next bytes (whole code points or not) and appends what is certain to `events`.
  /// `control_token`: the bytes are the text of one control token; a stray </think> in the answer is dropped
  /// if it came as one and kept as text.
  void feed(std::string_view bytes, std::vector<ReplyEvent>& events, bool control_token = false);
  /// Ends the reply and appends the rest. Nothing may be fed afterwards.
  void finish(ReplyEnd end, std::vector<ReplyEvent>& events);

  /// Whether the bytes so far end inside the reasoning.
  bool in_reasoning() const;

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

/// A whole reply: the joined events. `reasoning` and `content` are empty optionals where there was none.
struct Reply {
  std::optional<std::string> reasoning;
  std::optional<std::string> content;
  std::vector<ToolCall> tool_calls;
};
class ReplyCollector {
 public:
  void add(const ReplyEvent& event);
  /// The reply so far: calls that have ended, and the text of a cut one as content, on a line of its own.
  Reply reply() const;

 private:
  struct Call {
    std::string name;
    std::string arguments;  // JSON text
    bool ended = false;
  };
  std::string reasoning_;
  std::string content_;
  std::vector<Call> calls_;  // by index
};

}  // namespace calla
