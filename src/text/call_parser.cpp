#include "text/call_parser.h"

#include <string_view>

#include "text/utf8.h"

namespace calla {

bool is_bare_opening(const Lexeme& lexeme, const ReplyLexer& lexer, const ToolSet& tools) {
  return lexeme.kind == LexemeKind::function && lexer.at_line_start(lexeme.begin) &&
         tools.declares(lexeme.name);
}

CallParser::CallParser(const ToolSet& tools, const ReplyLexer& lexer, const Lexeme& first, Names names,
                       int index)
    : tools_(&tools),
      lexer_(&lexer),
      begin_(first.begin),
      first_tag_end_(first.end),
      names_(names),
      index_(index),
      state_(first.kind == LexemeKind::tool_call ? State::opening : State::function),
      name_(first.name),
      arguments_(tools, index) {}

TagSet CallParser::wanted() const {
  if (state_ == State::value) return TagSet(LexemeKind::parameter_end, LexemeKind::function_end);
  return TagSet(LexemeKind::tool_call, LexemeKind::tool_call_end, LexemeKind::function,
                LexemeKind::function_end, LexemeKind::parameter, LexemeKind::parameter_end);
}

CallParser::Result CallParser::step(const Lexeme& lexeme, EventWriter& events) {
  if (state_ == State::value) return step_value(lexeme, events);
  if (lexeme.kind == LexemeKind::space) return Result::more;
  switch (state_) {
    case State::opening:
      return step_opening(lexeme);
    case State::function:
      return step_function(lexeme, events);
    case State::parameter_closing:
      return step_parameter_closing(lexeme, events);
    case State::function_closing:
      return step_function_closing(lexeme, events);
    case State::next_opening:
      return step_next_opening(lexeme, events);
    case State::value:
    case State::call_closing:
      break;
  }
  return false_ending(lexeme, events);
}

CallParser::Result CallParser::step_opening(const Lexeme& lexeme) {
  if (lexeme.kind != LexemeKind::function) return Result::not_a_call;
  if (names_ == Names::declared && !tools_->declares(lexeme.name)) return Result::not_a_call;
  name_ = lexeme.name;
  return expect(State::function);
}

CallParser::Result CallParser::step_function(const Lexeme& lexeme, EventWriter& events) {
  if (lexeme.kind == LexemeKind::function_end) {
    function_end_ = lexeme.end;
    return expect(State::function_closing);
  }
  if (lexeme.kind != LexemeKind::parameter) return Result::not_a_call;
  commit(events);
  arguments_.begin_value(name_, lexeme.name, events);
  return expect(State::value);
}

CallParser::Result CallParser::step_value(const Lexeme& lexeme, EventWriter& events) {
  closing_begin_ = lexeme.begin;
  if (lexeme.kind == LexemeKind::parameter_end) return expect(State::parameter_closing);
  if (lexeme.kind == LexemeKind::function_end) {
    function_end_ = lexeme.end;
    return expect(State::function_closing);
  }
  arguments_.write(lexer_->text(lexeme), events);
  return Result::more;
}

CallParser::Result CallParser::step_parameter_closing(const Lexeme& lexeme, EventWriter& events) {
  switch (lexeme.kind) {
    case LexemeKind::parameter_end:
      return Result::more;
    case LexemeKind::parameter:
      arguments_.end_value(events);
      arguments_.begin_value(name_, lexeme.name, events);
      return expect(State::value);
    case LexemeKind::function_end:
      function_end_ = lexeme.end;
      return expect(State::function_closing);
    case LexemeKind::tool_call_end:
      end_ = lexeme.end;
      return expect(State::call_closing);
    default:
      return false_ending(lexeme, events);
  }
}

CallParser::Result CallParser::step_function_closing(const Lexeme& lexeme, EventWriter& events) {
  if (lexeme.kind == LexemeKind::tool_call_end) return complete(lexeme.end, events);
  if (lexeme.kind == LexemeKind::tool_call) return expect(State::next_opening);
  if (is_bare_opening(lexeme, *lexer_, *tools_)) return complete(function_end_, events);
  if (lexeme.kind == LexemeKind::unfinished_tag &&
      std::string_view("</tool_call>").starts_with(lexer_->text(lexeme))) {
    return complete(lexeme.end, events);
  }
  return false_ending(lexeme, events);
}

CallParser::Result CallParser::step_next_opening(const Lexeme& lexeme, EventWriter& events) {
  if (lexeme.kind == LexemeKind::function) return complete(function_end_, events);
  return false_ending(lexeme, events);
}

CallParser::Result CallParser::expect(State next) {
  state_ = next;
  return Result::more;
}

/// The tags since closing_begin_ did not end the value: they belong to it. None of them can begin another
/// ending, because they were all waiting for the same lexeme; so nothing has to be read twice.
CallParser::Result CallParser::false_ending(const Lexeme& lexeme, EventWriter& events) {
  if (!committed_) return Result::not_a_call;
  arguments_.write(lexer_->text(closing_begin_, lexeme.begin), events);
  state_ = State::value;
  return step_value(lexeme, events);
}

CallParser::Result CallParser::complete(std::size_t end, EventWriter& events) {
  if (committed_) {
    arguments_.end_value(events);
  } else {
    commit(events);
  }
  arguments_.end(events);
  events.call_end(index_);
  end_ = end;
  return Result::ended;
}

CallParser::Result CallParser::finish(ReplyEnd end, EventWriter& events) {
  if (state_ == State::function_closing) return complete(function_end_, events);
  if (state_ == State::call_closing && end == ReplyEnd::stop) return complete(end_, events);
  return committed_ ? Result::cut : Result::not_a_call;
}

void CallParser::commit(EventWriter& events) {
  events.call_begin(index_, mend_utf8(name_));
  committed_ = true;
}

}  // namespace calla
