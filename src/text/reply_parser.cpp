#include "text/reply_parser.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "text/call_parser.h"
#include "text/event_writer.h"
#include "text/reply_lexer.h"
#include "text/reply_text.h"
#include "text/utf8.h"

namespace calla {

/// The reply is reasoning (if it starts so) up to </think>, then content; either may contain calls. While a
/// call is read, `call_` has it. Calls in the reasoning count only if nothing follows them: their text stays
/// in the lexer from `suspended_` on, their events wait in `suspended_events_`, and both are given up at the
/// first sign of anything else.
class ReplyParser::Machine {
 public:
  Machine(ToolSet tools, bool starts_in_reasoning)
      : tools_(std::move(tools)),
        in_reasoning_(starts_in_reasoning),
        reasoning_(ReplyText::Space::held),
        content_(tools_.empty() ? ReplyText::Space::sent : ReplyText::Space::held) {}
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  Machine(Machine&&) = delete;
  Machine& operator=(Machine&&) = delete;
  ~Machine() = default;

  void feed(std::string_view bytes, std::vector<ReplyEvent>& events, bool control_token) {
    EventWriter writer(events);
    lexer_.append(bytes, control_token);
    read(writer);
    lexer_.forget_before(suspended_ ? *suspended_ : call_ ? call_->begin() : lexer_.position());
  }

  void finish(ReplyEnd end, std::vector<ReplyEvent>& events) {
    EventWriter writer(events);
    lexer_.end();
    read(writer);
    while (call_) {
      take_result(call_->finish(end, in_reasoning_ ? suspended_writer_ : writer), writer);
      read(writer);
    }
    if (suspended_ && end == ReplyEnd::stop) {
      promote_suspended_calls(writer, events);
      return;
    }
    if (in_reasoning_) {
      release_suspended(lexer_.position(), writer);
      writer.reasoning(reasoning_.finish(false));
    }
    writer.content(content_.finish(call_count_ == 0));
  }

  bool in_reasoning() const { return in_reasoning_; }

 private:
  void read(EventWriter& writer) {
    while (const std::optional<Lexeme> lexeme = lexer_.next(wanted())) {
      if (call_) {
        read_in_call(*lexeme, writer);
      } else if (in_reasoning_) {
        read_in_reasoning(*lexeme, writer);
      } else {
        read_in_content(*lexeme, writer);
      }
    }
  }

  TagSet wanted() const {
    TagSet tags;
    if (call_) {
      tags = call_->wanted();
    } else if (!tools_.empty()) {
      tags = TagSet(LexemeKind::tool_call, LexemeKind::function);
    }
    if (in_reasoning_) tags = tags | TagSet(LexemeKind::think_end);
    if (in_reasoning_ && lexer_.position() == 0) tags = tags | TagSet(LexemeKind::think);
    return tags;
  }

  void read_in_content(const Lexeme& lexeme, EventWriter& writer) {
    if (opens_call(lexeme)) {
      // The text before is certain here; a call's first event must not overtake it.
      writer.content(content_.end_code_point());
      begin_call(lexeme);
    } else if (lexeme.kind == LexemeKind::think_end && lexeme.control) {
      if (lexer_.at_line_start(lexeme.begin)) lexer_.mark_line_start(lexeme.end);
      if (!content_.has_text()) content_.begin_after_mark();
    } else {
      writer.content(content_.write(lexer_.text(as_text(lexeme))));
    }
  }

  void read_in_reasoning(const Lexeme& lexeme, EventWriter& writer) {
    if (opens_call(lexeme)) {
      if (!suspended_) suspended_ = lexeme.begin;
      begin_call(lexeme);
    } else if (lexeme.kind == LexemeKind::space && suspended_) {
      return;  // nothing decided yet
    } else if (lexeme.kind == LexemeKind::think && !reasoning_.has_text() && !suspended_) {
      // The prompt has opened the reasoning already; the model repeats it.
      lexer_.mark_line_start(lexeme.end);
      reasoning_.begin_after_mark();
    } else if (lexeme.kind == LexemeKind::think_end) {
      end_reasoning(lexeme, writer);
    } else {
      release_suspended(lexeme.begin, writer);
      writer.reasoning(reasoning_.write(lexer_.text(as_text(lexeme))));
    }
  }

  void read_in_call(const Lexeme& lexeme, EventWriter& writer) {
    if (!in_reasoning_) {
      take_result(call_->step(lexeme, writer), writer);
    } else if (lexeme.kind == LexemeKind::think_end) {
      call_.reset();
      end_reasoning(lexeme, writer);
    } else {
      take_result(call_->step(lexeme, suspended_writer_), writer);
    }
  }

  bool opens_call(const Lexeme& lexeme) const {
    return !tools_.empty() &&
           (lexeme.kind == LexemeKind::tool_call || is_bare_opening(lexeme, lexer_, tools_));
  }

  void begin_call(const Lexeme& first) {
    const auto names = in_reasoning_ ? CallParser::Names::declared : CallParser::Names::any;
    call_.emplace(tools_, lexer_, first, names, call_count_);
  }

  void take_result(CallParser::Result result, EventWriter& writer) {
    if (call_->committed() && !in_reasoning_) content_.begin_call();
    switch (result) {
      case CallParser::Result::more:
        return;
      case CallParser::Result::ended:
        ++call_count_;
        lexer_.rewind(call_->end());
        break;
      case CallParser::Result::not_a_call: {
        // Its first tag is text. What follows it is read again, and may hold another opening; but a call that
        // is not certain yet has at most five tags, so this happens to no byte more than five times.
        const std::size_t end = call_->first_tag_end();
        lexer_.rewind(end);
        if (in_reasoning_) {
          release_suspended(end, writer);
        } else {
          writer.content(content_.write(lexer_.text(call_->begin(), end)));
        }
        break;
      }
      case CallParser::Result::cut: {
        const std::string_view text = lexer_.text(call_->begin(), lexer_.position());
        if (in_reasoning_) {
          release_suspended(lexer_.position(), writer);
        } else {
          writer.call_cut(call_count_++, mend_utf8(text));
        }
        break;
      }
    }
    call_.reset();
  }

  void end_reasoning(const Lexeme& lexeme, EventWriter& writer) {
    release_suspended(lexeme.begin, writer);
    writer.reasoning(reasoning_.finish(false));
    in_reasoning_ = false;
    lexer_.mark_line_start(lexeme.end);
    content_.begin_after_mark();
  }

  /// The suspended calls were part of the reasoning after all, up to `end`.
  void release_suspended(std::size_t end, EventWriter& writer) {
    if (!suspended_) return;
    writer.reasoning(reasoning_.write(lexer_.text(*suspended_, end)));
    suspended_.reset();
    suspended_events_.clear();
    call_count_ = 0;
  }

  void promote_suspended_calls(EventWriter& writer, std::vector<ReplyEvent>& events) {
    writer.reasoning(reasoning_.finish(false));
    events.insert(events.end(), std::make_move_iterator(suspended_events_.begin()),
                  std::make_move_iterator(suspended_events_.end()));
    suspended_events_.clear();
    suspended_.reset();
    in_reasoning_ = false;
  }

  /// The part of a lexeme that is text where its kind means nothing. After an unfinished tag's "<" reading
  /// starts anew.
  Lexeme as_text(Lexeme lexeme) {
    if (lexeme.kind == LexemeKind::unfinished_tag) {
      lexeme.end = lexeme.begin + 1;
      lexer_.rewind(lexeme.end);
    }
    return lexeme;
  }

  ToolSet tools_;
  ReplyLexer lexer_;
  bool in_reasoning_;
  ReplyText reasoning_;
  ReplyText content_;
  std::optional<CallParser> call_;
  int call_count_ = 0;
  std::optional<std::size_t> suspended_;
  std::vector<ReplyEvent> suspended_events_;
  EventWriter suspended_writer_{suspended_events_};
};

ReplyParser::ReplyParser(ToolSet tools, bool starts_in_reasoning)
    : machine_(std::make_unique<Machine>(std::move(tools), starts_in_reasoning)) {}
ReplyParser::~ReplyParser() = default;
ReplyParser::ReplyParser(ReplyParser&&) noexcept = default;
ReplyParser& ReplyParser::operator=(ReplyParser&&) noexcept = default;

void ReplyParser::feed(std::string_view bytes, std::vector<ReplyEvent>& events, bool control_token) {
  machine_->feed(bytes, events, control_token);
}
void ReplyParser::finish(ReplyEnd end, std::vector<ReplyEvent>& events) { machine_->finish(end, events); }
bool ReplyParser::in_reasoning() const { return machine_->in_reasoning(); }

}  // namespace calla
