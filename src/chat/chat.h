// One turn of a conversation, free of any API's dialect: a ChatRequest in, ChatEvents out. The terminal and
// every API are translators of it.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "chat/sampling_choice.h"
#include "engine/engine.h"
#include "text/conversation.h"
#include "text/prompt.h"
#include "text/reply_parser.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace calla {

/// What the reply may do with the tools.
struct ToolUse {
  enum class Kind { free, forbidden, required };
  Kind kind = Kind::free;
  std::string name = {};     // of a required call; empty: any tool's
  bool single_call = false;  // the reply ends after its first call
};

struct ChatRequest {
  Conversation conversation;
  PromptOptions options;
  ToolUse tool_use;
  SamplingChoice sampling;
  std::optional<int> max_tokens;       // of the whole reply, reasoning included
  std::optional<int> thinking_budget;  // tokens of reasoning, then it is closed and the answer begins
  std::vector<std::string> stop;       // end the answer; never looked for in the reasoning or in tool calls
  int top_logprobs = -1;               // see SamplingParams
  bool side_request = false;           // a title or tags: the prefix cache keeps nothing of it
};

/// A text to go on with as it stands, without turns, reasoning or tools.
struct RawRequest {
  std::vector<Token> prompt;
  SamplingChoice sampling;
  std::optional<int> max_tokens;
  std::vector<std::string> stop;
  int top_logprobs = -1;
};

/// A call begins: `id` is unique among all calls this process has made.
struct ChatToolCall {
  int index = 0;
  std::string id;
  std::string name;
};

/// A generated token, when logprobs were asked for; comes before the text it adds.
struct ChatToken {
  GeneratedToken token;
  bool reasoning = false;
};

enum class ChatEnd { stop, length, tool_calls, cancelled, failed };
std::string_view name(ChatEnd end);  // as the OpenAI API spells it: "stop"

struct ChatUsage {
  int prompt_tokens = 0;
  int cached_tokens = 0;      // of those; why not more: ChatFinished::timing.cache_note
  int completion_tokens = 0;  // all that were generated: reasoning and the end token included
  int reasoning_tokens = 0;
};

struct ChatFinished {
  ChatEnd end = ChatEnd::stop;
  std::string error;  // of ChatEnd::failed
  ChatUsage usage;
  std::vector<Token> ids;  // of the reply, the end token included
  GenerationFinished timing;
};

using ChatEvent = std::variant<PromptProgress, ChatToken, ReasoningDelta, ContentDelta, ChatToolCall,
                               ToolCallArguments, ToolCallEnd, ToolCallCut, ChatFinished>;

/// A running turn. Its destructor cancels it.
class ChatStream {
 public:
  /// Waits for the next event; ChatFinished is the last.
  ChatEvent next();
  /// The same, for at most `patience`.
  std::optional<ChatEvent> next(Seconds patience);
  void cancel() { generation_->cancel(); }
  const std::vector<Token>& prompt() const { return prompt_; }

 private:
  friend class Chat;
  ChatStream(const Tokenizer& tokenizer, std::optional<ReplyParser> parser, std::vector<std::string> stops,
             bool report_tokens);

  void start(Engine& engine, GenerationRequest request);
  void handle(const GenerationEvent& event);
  void take(const GeneratedToken& token);
  void read(Token token);
  void cut();
  void translate(std::vector<ReplyEvent>& events);
  void pass_content(std::string text);
  void finish(const GenerationFinished& finished);

  const Tokenizer* tokenizer_;
  std::vector<Token> prompt_;
  std::unique_ptr<Generation> generation_;
  std::optional<ReplyParser> parser_;  // none where all is content
  Utf8Assembler assembler_;
  std::vector<std::string> stops_;
  StopStrings stop_;
  bool report_tokens_;
  bool single_call_ = false;
  bool called_tool_ = false;
  bool cut_ = false;  // the reply has ended before its generation
  ChatUsage usage_;
  std::vector<Token> ids_;
  std::deque<ChatEvent> ready_;
};

/// A model ready to talk: an engine, the tokenizer and the model's own sampling defaults. All must outlive
/// it.
class Chat {
 public:
  Chat(Engine& engine, const Tokenizer& tokenizer, SamplingChoice defaults, std::vector<Token> end_tokens);

  /// Renders, encodes and starts. Throws RequestError that names the field for what cannot be served. A final
  /// assistant message is continued.
  ChatStream start(const ChatRequest& request) const;

  /// Goes on with a text: all of the reply is content.
  ChatStream complete(const RawRequest& request) const;

  /// The prompt of a request, as start() would give it to the model.
  Prompt render(const ChatRequest& request) const;

  Engine& engine() const { return *engine_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  SamplingParams sampling(const SamplingChoice& choice, int top_logprobs) const;

  Engine* engine_;
  const Tokenizer* tokenizer_;
  SamplingChoice defaults_;
  std::vector<Token> end_tokens_;
};

}  // namespace calla
