// One call in the model's XML form, read lexeme by lexeme from its first tag on.
#pragma once
#include <cstddef>
#include <string>

#include "text/call_arguments.h"
#include "text/event_writer.h"
#include "text/reply_lexer.h"
#include "text/tool_schema.h"

namespace calla {

/// Whether a <function=NAME> without a <tool_call> before it opens a call: at the start of a line, of a
/// declared tool.
bool is_bare_opening(const Lexeme& lexeme, const ReplyLexer& lexer, const ToolSet& tools);

/// Reads
///   [<tool_call>] <function=NAME> (<parameter=NAME> value </parameter>)* </function> [</tool_call>]
/// with whitespace between the tags. Nothing is written before the first <parameter=NAME>, or the end of a
/// call without parameters, is certain; from there on the lexemes are a call, however it ends.
///
/// A value may contain any of these tags. It ends only at what is certainly no text: at </parameter>
/// (repeated or not) before <parameter=NAME> or </function>, or at </function> alone; and a </function>
/// counts only before </tool_call>, the opening of another call, or the end of the reply. At the very end of
/// a reply </function> may be missing.
class CallParser {
 public:
  enum class Result {
    more,        // goes on
    ended,       // complete; the reply goes on at end()
    not_a_call,  // nothing was written, and the lexemes so far are text
    cut,         // the reply ended inside the call
  };
  enum class Names { any, declared };

  /// `first` is <tool_call>, or a <function=NAME> that is a bare opening. The lexer keeps the bytes from
  /// there on until the call has ended. `names` says which tools a wrapped call may name.
  CallParser(const ToolSet& tools, const ReplyLexer& lexer, const Lexeme& first, Names names, int index);

  Result step(const Lexeme& lexeme, EventWriter& events);
  /// The reply ends here. Never returns `more`.
  Result finish(ReplyEnd end, EventWriter& events);

  /// The tags that matter next.
  TagSet wanted() const;
  /// Whether events of the call have been written.
  bool committed() const { return committed_; }
  /// Where its first tag begins and ends.
  std::size_t begin() const { return begin_; }
  std::size_t first_tag_end() const { return first_tag_end_; }
  std::size_t end() const { return end_; }

 private:
  enum class State {
    opening,            // after <tool_call>
    function,           // after <function=NAME>
    value,              // inside the value of a parameter
    parameter_closing,  // after </parameter> in a value
    function_closing,   // after </function>, in a value or not
    next_opening,       // after </function> and <tool_call>
    call_closing,       // after </parameter> and </tool_call> in a value
  };
  Result step_opening(const Lexeme& lexeme);
  Result step_function(const Lexeme& lexeme, EventWriter& events);
  Result step_value(const Lexeme& lexeme, EventWriter& events);
  Result step_parameter_closing(const Lexeme& lexeme, EventWriter& events);
  Result step_function_closing(const Lexeme& lexeme, EventWriter& events);
  Result step_next_opening(const Lexeme& lexeme, EventWriter& events);
  Result expect(State next);
  Result false_ending(const Lexeme& lexeme, EventWriter& events);
  Result complete(std::size_t end, EventWriter& events);
  void commit(EventWriter& events);

  const ToolSet* tools_;
  const ReplyLexer* lexer_;
  std::size_t begin_;
  std::size_t first_tag_end_;
  Names names_;
  int index_;
  State state_;
  std::string name_;
  CallArguments arguments_;
  bool committed_ = false;
  std::size_t closing_begin_ = 0;  // of the tags that may end the value
  std::size_t function_end_ = 0;   // the end of </function>
  std::size_t end_ = 0;
};

}  // namespace calla
