// calla tokenize and calla detokenize: between text and ids.
#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/open.h"
#include "cli/terminal.h"

namespace calla::cli {
namespace {

struct TokenizeFlags {
  ModelFlags model;
  std::optional<std::string> text;
  bool special = false;
  bool json = false;
};

void tokenize(const TokenizeFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::load(model_directory(flags.model));
  const std::string text = flags.text ? *flags.text : read_standard_input();
  const auto control =
      flags.special ? Tokenizer::ControlTokens::recognised : Tokenizer::ControlTokens::as_text;
  const std::vector<Token> ids = tokenizer.encode(text, control);
  put(STDOUT_FILENO,
      flags.json ? Json{{"ids", ids}}.dump() + "\n" : fmt::format("{}\n", fmt::join(ids, " ")));
}

struct DetokenizeFlags {
  ModelFlags model;
  std::vector<Token> ids;
  bool json = false;
};

/// Ids as a person or another program writes them: numbers with anything but digits between.
std::vector<Token> parse_ids(std::string_view text) {
  std::vector<Token> ids;
  constexpr std::string_view digits = "0123456789";
  constexpr std::string_view separators = " \t\r\n,;[]";
  for (std::size_t at = text.find_first_not_of(separators); at < text.size();
       at = text.find_first_not_of(separators, at)) {
    const std::size_t end = std::min(text.find_first_not_of(digits, at), text.size());
    Token id = 0;
    const auto [stopped, fault] = std::from_chars(text.data() + at, text.data() + end, id);
    if (fault != std::errc() || stopped == text.data() + at) {
      throw Error("standard input", fmt::format("has no token id at byte {}", at),
                  "give numbers with blanks or commas between");
    }
    ids.push_back(id);
    at = end;
  }
  return ids;
}

void detokenize(const DetokenizeFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::load(model_directory(flags.model));
  const std::vector<Token> ids = flags.ids.empty() ? parse_ids(read_standard_input()) : flags.ids;
  for (const Token id : ids) {
    if (id < 0 || id >= tokenizer.size()) {
      throw Error("ids",
                  fmt::format("{} is not an id of this tokenizer, which has {}", id, tokenizer.size()));
    }
  }
  const std::string text = tokenizer.decode(ids);
  put(STDOUT_FILENO, flags.json ? Json{{"text", text}}.dump() + "\n" : text);
  if (!flags.json && is_terminal(STDOUT_FILENO) && !text.ends_with('\n')) put(STDOUT_FILENO, "\n");
}

}  // namespace

void add_tokenize(CLI::App& program) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App& command = *program.add_subcommand("tokenize", "Print the token ids of a text");
  command.add_option("TEXT", flags->text, "The text (default: read from standard input)")->option_text(" ");
  add_model_flag(command, flags->model);
  command.add_flag("--special", flags->special,
                   "Read control tokens such as <|im_end|> as tokens, not as text");
  command.add_flag("--json", flags->json, "Print {\"ids\": [...]}");
  command.callback([flags] { tokenize(*flags); });
}

void add_detokenize(CLI::App& program) {
  auto flags = std::make_shared<DetokenizeFlags>();
  CLI::App& command = *program.add_subcommand("detokenize", "Print the text of token ids");
  command.add_option("IDS", flags->ids, "The ids (default: read from standard input)")->option_text("...");
  add_model_flag(command, flags->model);
  command.add_flag("--json", flags->json, "Print {\"text\": \"...\"}");
  command.callback([flags] { detokenize(*flags); });
}

}  // namespace calla::cli
