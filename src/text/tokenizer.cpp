#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <deque>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace calla {
namespace {
// NFC makes a text at most three times as long, and ICU counts its bytes in 31 bits.
constexpr std::size_t longest_text = std::size_t{512} << 20;

Vocabulary make_vocabulary(const std::vector<TokenizerFile::Entry>& entries, std::string_view where) {
  const std::string field = field_of(where, "model.vocab");
  Vocabulary vocabulary(entries.size());
  for (const auto& [bytes, id] : entries) {
    if (!vocabulary.bytes(id).empty()) throw Error(field, fmt::format("gives the id {} to two tokens", id));
    if (vocabulary.find(bytes) != Vocabulary::none) {
      throw Error(field, fmt::format("has the token \"{}\" twice", mend_utf8(bytes)));
    }
    vocabulary.add(id, bytes);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    if (vocabulary.find({&text, 1}) != Vocabulary::none) continue;
    throw Error(field, fmt::format("has no token of the single byte 0x{:02X}", byte), "expected all 256");
  }
  return vocabulary;
}

MergeTable make_merges(const std::vector<TokenizerFile::MergePair>& pairs, const Vocabulary& vocabulary,
                       std::string_view where) {
  MergeTable merges(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto fail = [&](std::string_view problem) {
      throw Error(field_of(where, fmt::format("model.merges[{}]", i)),
                  fmt::format("joins \"{}\" and \"{}\", {}", mend_utf8(pairs[i].left),
                              mend_utf8(pairs[i].right), problem));
    };
    const auto& [left, right] = pairs[i];
    const std::array<Token, 3> ids{vocabulary.find(left), vocabulary.find(right),
                                   vocabulary.find(left + right)};
    if (std::find(ids.begin(), ids.end(), Vocabulary::none) != ids.end()) {
      fail("but not both and the result are in model.vocab");
    }
    if (!merges.insert(ids[0], ids[1], ids[2])) fail("as an earlier merge does");
  }
  return merges;
}

Bpe make_bpe(const TokenizerFile& file, std::string_view where) {
  Vocabulary vocabulary = make_vocabulary(file.vocabulary, where);
  MergeTable merges = make_merges(file.merges, vocabulary, where);
  return {std::move(vocabulary), std::move(merges)};
}

AddedTokens make_added_tokens(std::vector<AddedToken> tokens, const Vocabulary& vocabulary,
                              std::string_view where) {
  std::set<Token> ids;
  std::set<std::string_view> contents;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string field = field_of(where, fmt::format("added_tokens[{}]", i));
    if (!vocabulary.bytes(tokens[i].id).empty() || !ids.insert(tokens[i].id).second) {
      throw Error(field + ".id", fmt::format("is {}, which is another token's", tokens[i].id));
    }
    if (!contents.insert(tokens[i].content).second) {
      throw Error(field + ".content",
                  fmt::format("is \"{}\", which is another added token's", tokens[i].content));
    }
  }
  return AddedTokens(std::move(tokens));
}
}  // namespace

struct Tokenizer::Tables {
  Bpe bpe;
  AddedTokens added;
  Pretokenizer pretokenizer;
};

namespace {
/// One call of encode.
class Encoding {
 public:
  Encoding(const Pretokenizer& pretokenizer, const Bpe& bpe, std::string_view text)
      : pretokenizer_(pretokenizer), encoder_(bpe, tokens_, text.size()), is_nfc_(is_known_nfc(text)) {
    tokens_.reserve(text.size() / 4);
  }

  /// A stretch of the text between two control tokens.
  void add_ordinary(std::string_view run) {
    if (run.empty()) return;
    // Every part of an NFC text is in NFC.
    if (!is_nfc_) run = normalized_.emplace_back(to_nfc(run));
    Pretokenizer::Pieces pieces(pretokenizer_, run);
    while (const auto piece = pieces.next()) encoder_.encode(*piece);
  }

  void add_control(Token token) { tokens_.push_back(token); }

  std::vector<Token> tokens() && { return std::move(tokens_); }

 private:
  const Pretokenizer& pretokenizer_;
  std::vector<Token> tokens_;
  std::deque<std::string> normalized_;  // runs, kept because the encoder refers to the pieces it has seen
  PieceEncoder encoder_;
  bool is_nfc_;
};

void check_text(std::string_view text) {
  if (text.size() > longest_text) {
    throw Error("the text", fmt::format("has {} bytes", text.size()),
                fmt::format("expected at most {}", longest_text));
  }
  const std::size_t invalid = first_invalid_utf8(text);
  if (invalid < text.size()) throw Error("the text", fmt::format("is not valid UTF-8 at byte {}", invalid));
}

void check_ranges(std::span<const TextRange> ranges, std::size_t text_size) {
  std::size_t end = 0;
  for (const TextRange& range : ranges) {
    if (range.begin < end || range.end < range.begin || range.end > text_size) {
      throw Error("the literal ranges",
                  fmt::format("have [{}, {}) in a text of {} bytes", range.begin, range.end, text_size),
                  "expected ranges within the text, ascending and disjoint");
    }
    end = range.end;
  }
}
}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  return parse(read_text_file(path), path.string());
}

Tokenizer Tokenizer::parse(std::string_view json, std::string_view where) {
  TokenizerFile file = parse_tokenizer_file(json, where);
  Bpe bpe = make_bpe(file, where);
  AddedTokens added = make_added_tokens(std::move(file.added_tokens), bpe.vocabulary(), where);
  Pretokenizer pretokenizer(file.split_regex,
                            field_of(where, "pre_tokenizer.pretokenizers[0].pattern.Regex"));
  return Tokenizer(
      std::make_unique<const Tables>(Tables{std::move(bpe), std::move(added), std::move(pretokenizer)}));
}

Tokenizer::Tokenizer(std::unique_ptr<const Tables> tables) : tables_(std::move(tables)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<Token> Tokenizer::encode(std::string_view text, ControlTokens control) const {
  const TextRange whole{0, text.size()};
  return encode(text,
                control == ControlTokens::as_text ? std::span(&whole, 1) : std::span<const TextRange>());
}

std::vector<Token> Tokenizer::encode(std::string_view text, std::span<const TextRange> literal) const {
  check_text(text);
  check_ranges(literal, text.size());
  Encoding encoding(tables_->pretokenizer, tables_->bpe, text);
  std::size_t encoded = 0;
  const auto add_ordinary_until = [&](std::size_t end) {
    encoding.add_ordinary(text.substr(encoded, end - encoded));
    encoded = end;
  };
  const auto recognise_between = [&](std::size_t begin, std::size_t end) {
    while (const auto match = tables_->added.find(text, begin, end)) {
      add_ordinary_until(match->begin);
      encoding.add_control(match->token->id);
      begin = encoded = match->begin + match->token->content.size();
    }
  };
  std::size_t gap = 0;
  for (const TextRange& range : literal) {
    recognise_between(gap, range.begin);
    gap = range.end;
  }
  recognise_between(gap, text.size());
  add_ordinary_until(text.size());
  return std::move(encoding).tokens();
}

std::string_view Tokenizer::bytes(Token token) const {
  const AddedToken* added = tables_->added.with_id(token);
  return added != nullptr ? added->content : tables_->bpe.vocabulary().bytes(token);
}

std::string Tokenizer::decode(std::span<const Token> tokens) const {
  std::string joined;
  for (const Token token : tokens) joined.append(bytes(token));
  return mend_utf8(joined);
}

bool Tokenizer::is_control(Token token) const { return tables_->added.with_id(token) != nullptr; }

bool Tokenizer::is_special(Token token) const {
  const AddedToken* added = tables_->added.with_id(token);
  return added != nullptr && added->special;
}

std::optional<Token> Tokenizer::control_token(std::string_view text) const {
  const AddedToken* added = tables_->added.with_content(text);
  return added != nullptr ? std::optional(added->id) : std::nullopt;
}

int Tokenizer::size() const { return std::max(tables_->bpe.vocabulary().size(), tables_->added.size()); }

}  // namespace calla
