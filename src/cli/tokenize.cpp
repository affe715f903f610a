// calla tokenize and calla detokenize: between text and ids.
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

}  // namespace

void tokenize(const TokenizeFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::load(model_directory(flags.model));
  const std::string text = flags.text ? *flags.text : read_standard_input();
  const auto control =
      flags.special ? Tokenizer::ControlTokens::recognised : Tokenizer::ControlTokens::as_text;
  const std::vector<Token> ids = tokenizer.encode(text, control);
  put(STDOUT_FILENO,
      flags.json ? Json{{"ids", ids}}.dump() + "\n" : fmt::format("{}\n", fmt::join(ids, " ")));
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

}  // namespace calla::cli
