// The model's tokenizer, read from its tokenizer.json: NFC, the file's own pre-tokenizing regex, byte-level
// BPE, and the added (control) tokens.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "text/prompt.h"

namespace calla {

/// Immutable after loading: any number of threads may use one object at once.
class Tokenizer {
 public:
  /// Reads DIRECTORY/tokenizer.json. Throws Error that names the file and the field when it is missing,
  /// malformed, or uses a kind of tokenizer other than this model's.
  static Tokenizer load(const std::filesystem::path& directory);
  /// The same from the text of the file; `where` names it in messages.
  static Tokenizer parse(std::string_view json, std::string_view where);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  enum class ControlTokens { as_text, recognised };
  /// Ids of a UTF-8 text. Invalid UTF-8 throws Error with the byte offset. Time is linear in the text (n log
  /// n for a single run of letters without a break).
  std::vector<Token> encode(std::string_view text, ControlTokens control) const;
  /// Ids of a text in which control tokens are recognised everywhere but inside the `literal` ranges
  /// (ascending, disjoint). Ordinary text on both sides of a range's edge is one text to the regex and the
  /// merges.
  std::vector<Token> encode(std::string_view text, std::span<const TextRange> literal) const;
  std::vector<Token> encode(const Prompt& prompt) const { return encode(prompt.text, prompt.literal); }

  /// The bytes of one token, control tokens as their text; empty for an id that the tokenizer does not use.
  std::string_view bytes(Token token) const;
  /// The bytes of all tokens, joined, with every ill-formed UTF-8 sequence replaced by U+FFFD.
  std::string decode(std::span<const Token> tokens) const;

  /// Whether the id is an added token, and whether the file marks it special.
  bool is_control(Token token) const;
  bool is_special(Token token) const;
  /// The id of an added token by its text ("<|im_end|>").
  std::optional<Token> control_token(std::string_view text) const;
  /// One more than the largest id in use.
  int size() const;

 private:
  struct Tables;
  explicit Tokenizer(std::unique_ptr<const Tables> tables);
  std::unique_ptr<const Tables> tables_;
};

}  // namespace calla
