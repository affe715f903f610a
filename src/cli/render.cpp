// calla render: the prompt that the model would be given for a conversation.
#include <memory>
#include <string>

#include <unistd.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/conversation_file.h"
#include "cli/open.h"
#include "cli/terminal.h"

namespace calla::cli {
void render(const RenderFlags& flags) {
  const ConversationFile file = read_conversation_file(flags.messages_file);
  const Tokenizer tokenizer = Tokenizer::load(model_directory(flags.model));
  const Prompt prompt = write_prompt(file.conversation, file.options);
  const std::vector<Token> ids = tokenizer.encode(prompt);
  put(STDOUT_FILENO, flags.json ? Json{{"prompt", prompt.text}, {"ids", ids}}.dump() + "\n" : prompt.text);
}

}  // namespace calla::cli
