// calla render: the prompt that the model would be given for a conversation.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include <unistd.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/conversation_file.h"
#include "cli/open.h"
#include "cli/terminal.h"

namespace calla::cli {
namespace {

struct RenderFlags {
  ModelFlags model;
  std::string messages_file;
  bool json = false;
};

void render(const RenderFlags& flags) {
  const ConversationFile file = read_conversation_file(flags.messages_file);
  const Tokenizer tokenizer = Tokenizer::load(model_directory(flags.model));
  const Prompt prompt = write_prompt(file.conversation, file.options);
  const std::vector<Token> ids = tokenizer.encode(prompt);
  put(STDOUT_FILENO, flags.json ? Json{{"prompt", prompt.text}, {"ids", ids}}.dump() + "\n" : prompt.text);
}

}  // namespace

void add_render(CLI::App& program) {
  auto flags = std::make_shared<RenderFlags>();
  CLI::App& command = *program.add_subcommand("render", "Print the prompt of a conversation");
  command
      .add_option("--messages", flags->messages_file,
                  "JSON file with a conversation: {\"messages\", \"tools\", \"chat_template_kwargs\"}")
      ->type_name("FILE")
      ->required();
  add_model_flag(command, flags->model);
  command.add_flag("--json", flags->json, "Print {\"prompt\": \"...\", \"ids\": [...]}");
  command.callback([flags] { render(*flags); });
}

}  // namespace calla::cli
