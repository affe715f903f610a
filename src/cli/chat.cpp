// calla chat: a conversation at the terminal.
#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "chat/collector.h"
#include "cli/answer_printer.h"
#include "cli/commands.h"
#include "cli/conversation_file.h"
#include "cli/line_reader.h"
#include "cli/open.h"
#include "cli/terminal.h"
#include "text/utf8.h"

namespace calla::cli {
namespace {

constexpr std::string_view help_text =
    "  /help           this list\n"
    "  /clear          forget the conversation, keep the instructions\n"
    "  /system TEXT    set the instructions (without TEXT: remove them)\n"
    "  /think on|off   reason before answering, or answer at once\n"
    "  /save FILE      write the conversation as JSON\n"
    "  /load FILE      go on with a saved conversation\n"
    "  /exit           leave (also Ctrl-D)\n"
    "  A line that ends in \\ goes on in the next; \"\"\" on a line of its own begins and ends a longer "
    "text.\n"
    "  Ctrl-C stops an answer.\n";

class Session {
 public:
  Session(const ChatFlags& flags, const Chat& chat) : flags_(flags), chat_(chat) {
    flags.request.apply(request_);
    set_system(flags.system);
  }

  void run() {
    const InterruptGuard guard;
    if (is_terminal(STDIN_FILENO)) note("/help lists the commands.");
    for (;;) {
      std::string line;
      const LineEnd end = reader_.read_message(line, fmt::format("{}›{} ", out_.bold, out_.reset), "… ");
      if (end == LineEnd::closed) break;
      if (end == LineEnd::interrupted) {
        InterruptGuard::take();
        put(STDOUT_FILENO, "\n");
        note("Ctrl-D or /exit leaves.");
        continue;
      }
      if (line.find_first_not_of(" \t\n") == std::string::npos) continue;
      try {
        if (line == "/exit" || line == "/quit") return;
        line.starts_with('/') ? command(line) : answer(line);
      } catch (const Error& fault) {
        // A fault costs the turn and not the conversation.
        put(STDERR_FILENO, fmt::format("{}{}{}\n", err_.red, fault.what(), err_.reset));
      }
    }
    if (is_terminal(STDIN_FILENO)) put(STDOUT_FILENO, "\n");
  }

 private:
  std::vector<Message>& messages() { return request_.conversation.messages; }

  void note(std::string_view text) {
    put(STDERR_FILENO, fmt::format("{}{}{}\n", err_.dim, text, err_.reset));
  }

  void set_system(const std::string& text) {
    std::erase_if(messages(), [](const Message& message) { return message.role == Role::system; });
    if (!text.empty()) messages().insert(messages().begin(), {.role = Role::system, .content = text});
  }

  void answer(const std::string& text) {
    if (const std::size_t at = first_invalid_utf8(text); at < text.size()) {
      throw Error("message", fmt::format("is not UTF-8 at byte {}", at));
    }
    const std::size_t before = messages().size();
    messages().push_back({.role = Role::user, .content = text});
    try {
      stream_answer();
    } catch (const Error&) {
      messages().resize(before);
      throw;
    }
  }

  void stream_answer() {
    ChatStream stream = chat_.start(request_);
    AnswerPrinter printer(!flags_.hide_thinking);
    ChatCollector collector;
    InterruptGuard::take();
    for (;;) {
      // Short waits, so that Ctrl-C is seen at once.
      const std::optional<ChatEvent> event = stream.next(Seconds(0.05));
      if (InterruptGuard::take()) stream.cancel();
      if (!event) continue;
      printer.print(*event);
      collector.add(*event);
      if (const auto* finished = std::get_if<ChatFinished>(&*event)) {
        if (finished->end == ChatEnd::failed) throw Error(chat_.engine().device(), finished->error);
        break;
      }
    }
    messages().push_back(collector.message());
  }

  void command(const std::string& line) {
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::string_view verb = std::string_view(line).substr(0, blank);
    const std::string argument = blank < line.size() ? line.substr(blank + 1) : "";
    if (verb == "/help") {
      put(STDOUT_FILENO, chat_help());
    } else if (verb == "/clear") {
      std::erase_if(messages(), [](const Message& message) { return message.role != Role::system; });
      note("The conversation is forgotten.");
    } else if (verb == "/system") {
      set_system(argument);
      note(argument.empty() ? "No instructions." : "The instructions are set.");
    } else if (verb == "/think" && (argument == "on" || argument == "off")) {
      request_.options.enable_thinking = argument == "on";
      note(argument == "on" ? "Reasons before answering." : "Answers at once.");
    } else if (verb == "/save" && !argument.empty()) {
      write_conversation_file(argument, request_.conversation, request_.options);
      note(fmt::format("Saved {} messages.", messages().size()));
    } else if (verb == "/load" && !argument.empty()) {
      const ConversationFile file = read_conversation_file(argument);
      request_.conversation = file.conversation;
      request_.options.enable_thinking = file.options.enable_thinking;
      note(fmt::format("Loaded {} messages.", messages().size()));
    } else {
      note(fmt::format("{} is not understood; /help lists the commands.", line));
    }
  }

  const ChatFlags& flags_;
  const Chat& chat_;
  ChatRequest request_;
  LineReader reader_;
  Style out_{STDOUT_FILENO};
  Style err_{STDERR_FILENO};
};

}  // namespace

std::string_view chat_help() { return help_text; }

void chat(const ChatFlags& flags) {
  // Each turn goes on from what the one before has read.
  const std::unique_ptr<Model> model = open_model(flags.model, {.cache_memory = std::nullopt});
  Session(flags, model->chat).run();
}

}  // namespace calla::cli
