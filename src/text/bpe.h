// Byte-pair encoding: the bytes of a piece of text become tokens, and the adjacent pair of the lowest rank is
// joined until no pair has a merge.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "text/vocabulary.h"

namespace calla {

/// The merges by pair of tokens. A merge's rank is its place in the order of insertion.
class MergeTable {
 public:
  static constexpr std::uint32_t no_rank = UINT32_MAX;

  /// Makes room for `count` merges; more cannot be inserted.
  explicit MergeTable(std::size_t count);
  /// Returns false, and changes nothing, when the pair has a merge already.
  bool insert(Token left, Token right, Token result);

  /// The rank of a pair, or no_rank.
  std::uint32_t rank(Token left, Token right) const;
  /// What the merge of a rank makes.
  Token result(std::uint32_t rank) const { return results_[rank]; }

 private:
  struct Slot {
    std::uint64_t pair = 0;
    std::uint32_t rank = no_rank;
  };
  std::size_t slot_of(std::uint64_t pair) const;

  std::vector<Slot> slots_;     // open addressing, at most half full
  std::vector<Token> results_;  // by rank
};

class Bpe {
 public:
  /// The vocabulary must hold every single byte.
  Bpe(Vocabulary vocabulary, MergeTable merges);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  /// The token of a piece that becomes one token, or Vocabulary::none. `hash` is the piece's hash_bytes.
  Token whole(std::string_view piece, std::uint64_t hash) const;
  /// Appends the tokens of a piece of less than 4 GiB. Time is n log n in its bytes.
  void encode(std::string_view piece, std::vector<Token>& tokens) const;

 private:
  void encode_short(std::string_view piece, std::vector<Token>& tokens) const;
  void encode_long(std::string_view piece, std::vector<Token>& tokens) const;
  Token byte_token(char byte) const { return byte_tokens_[static_cast<unsigned char>(byte)]; }
  std::uint32_t byte_rank(char left, char right) const {
    return byte_ranks_[static_cast<std::size_t>(static_cast<unsigned char>(left)) << 8 |
                       static_cast<unsigned char>(right)];
  }

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::array<Token, 256> byte_tokens_{};
  // The ranks of all pairs of bytes, left * 256 + right: where every piece begins, in a table that fits the
  // cache.
  std::vector<std::uint32_t> byte_ranks_;
  // By id: whether the token's own bytes become that token. Not every vocabulary entry is reached by the
  // merges.
  std::vector<std::uint8_t> is_whole_;
  std::size_t longest_whole_ = 0;  // bytes
};

/// Encodes pieces of text and remembers those seen before. One object serves one thread; the pieces' bytes
/// and the vector of tokens must outlive it, and nothing but this object may change the tokens it has
/// appended.
class PieceEncoder {
 public:
  /// `text_size`: about how many bytes will be encoded, which sets the size of the memory.
  PieceEncoder(const Bpe& bpe, std::vector<Token>& tokens, std::size_t text_size);
  void encode(std::string_view piece);

 private:
  struct Seen {
    std::string_view piece;
    std::size_t begin = 0;  // its tokens in tokens_
    std::size_t count = 0;
  };
  const Bpe& bpe_;
  std::vector<Token>& tokens_;
  std::vector<Seen> seen_;  // direct-mapped by hash: a collision forgets the older piece
};

}  // namespace calla
