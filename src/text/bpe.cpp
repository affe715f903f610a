#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

namespace calla {
namespace {
// Up to this many bytes, looking at every pair for each merge is quicker than keeping a heap.
constexpr std::size_t short_piece = 48;

std::uint64_t pair_of(Token left, Token right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}
}  // namespace

MergeTable::MergeTable(std::size_t count) : slots_(std::bit_ceil(2 * count + 1)) { results_.reserve(count); }

// The slot that holds the pair, or the free slot where it belongs.
std::size_t MergeTable::slot_of(std::uint64_t pair) const {
  const std::size_t mask = slots_.size() - 1;
  const std::uint64_t hash = pair * 0x9E3779B97F4A7C15;
  std::size_t at = (hash ^ hash >> 32) & mask;
  while (slots_[at].rank != no_rank && slots_[at].pair != pair) at = (at + 1) & mask;
  return at;
}

bool MergeTable::insert(Token left, Token right, Token result) {
  Slot& slot = slots_[slot_of(pair_of(left, right))];
  if (slot.rank != no_rank) return false;
  slot = {pair_of(left, right), static_cast<std::uint32_t>(results_.size())};
  results_.push_back(result);
  return true;
}

std::uint32_t MergeTable::rank(Token left, Token right) const {
  return slots_[slot_of(pair_of(left, right))].rank;
}

Bpe::Bpe(Vocabulary vocabulary, MergeTable merges)
    : vocabulary_(std::move(vocabulary)),
      merges_(std::move(merges)),
      is_whole_(static_cast<std::size_t>(vocabulary_.size())) {
  for (std::size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    const char text = static_cast<char>(byte);
    byte_tokens_[byte] = vocabulary_.find({&text, 1});
  }
  byte_ranks_.reserve(byte_tokens_.size() * byte_tokens_.size());
  for (const Token left : byte_tokens_) {
    for (const Token right : byte_tokens_) byte_ranks_.push_back(merges_.rank(left, right));
  }
  std::vector<Token> tokens;
  for (Token id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view bytes = vocabulary_.bytes(id);
    if (bytes.empty()) continue;
    tokens.clear();
    encode(bytes, tokens);
    if (tokens.size() != 1 || tokens[0] != id) continue;
    is_whole_[static_cast<std::size_t>(id)] = 1;
    longest_whole_ = std::max(longest_whole_, bytes.size());
  }
}

Token Bpe::whole(std::string_view piece, std::uint64_t hash) const {
  if (piece.size() > longest_whole_) return Vocabulary::none;
  const Token id = vocabulary_.find(piece, hash);
  return id != Vocabulary::none && is_whole_[static_cast<std::size_t>(id)] != 0 ? id : Vocabulary::none;
}

void Bpe::encode(std::string_view piece, std::vector<Token>& tokens) const {
  if (piece.size() <= short_piece) {
    encode_short(piece, tokens);
  } else {
    encode_long(piece, tokens);
  }
}

void Bpe::encode_short(std::string_view piece, std::vector<Token>& tokens) const {
  std::array<Token, short_piece> parts;          // NOLINT(cppcoreguidelines-pro-type-member-init)
  std::array<std::uint32_t, short_piece> ranks;  // of a part and the one after it; NOLINT
  std::size_t count = piece.size();
  for (std::size_t i = 0; i < count; ++i) parts[i] = byte_token(piece[i]);
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = byte_rank(piece[i], piece[i + 1]);
  while (count > 1) {
    // The first of equal ranks, that is, the leftmost.
    const auto lowest =
        std::min_element(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(count - 1));
    if (*lowest == MergeTable::no_rank) break;
    const auto at = static_cast<std::size_t>(lowest - ranks.begin());
    parts[at] = merges_.result(*lowest);
    --count;
    std::copy(parts.begin() + at + 2, parts.begin() + count + 1, parts.begin() + at + 1);
    std::copy(ranks.begin() + at + 1, ranks.begin() + count, ranks.begin() + at);
    if (at > 0) ranks[at - 1] = merges_.rank(parts[at - 1], parts[at]);
    if (at + 1 < count) ranks[at] = merges_.rank(parts[at], parts[at + 1]);
  }
  tokens.insert(tokens.end(), parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(count));
}

void Bpe::encode_long(std::string_view piece, std::vector<Token>& tokens) const {
  // A linked list of parts at their first bytes. A heap holds every pair by rank, then position; a merge
  // leaves the entries of the pairs that it ends, and they are known by a rank that the part at their
  // position no longer has.
  struct Part {
    Token token;
    std::uint32_t rank;  // with the next part
    std::uint32_t before;
    std::uint32_t next;
  };
  const auto end = static_cast<std::uint32_t>(piece.size());
  std::vector<Part> parts(piece.size());
  for (std::uint32_t i = 0; i < end; ++i) {
    parts[i] = {byte_token(piece[i]), MergeTable::no_rank, i - 1, i + 1};
  }
  const auto rank_at = [&](std::uint32_t at) {
    const std::uint32_t next = parts[at].next;
    return next == end ? MergeTable::no_rank : merges_.rank(parts[at].token, parts[next].token);
  };
  const auto entry = [](std::uint32_t rank, std::uint32_t at) { return std::uint64_t{rank} << 32 | at; };

  std::vector<std::uint64_t> entries;
  for (std::uint32_t i = 0; i + 1 < end; ++i) {
    parts[i].rank = byte_rank(piece[i], piece[i + 1]);
    if (parts[i].rank != MergeTable::no_rank) entries.push_back(entry(parts[i].rank, i));
  }
  std::priority_queue heap(std::greater<>(), std::move(entries));
  const auto update = [&](std::uint32_t at) {
    parts[at].rank = rank_at(at);
    if (parts[at].rank != MergeTable::no_rank) heap.push(entry(parts[at].rank, at));
  };
  while (!heap.empty()) {
    const auto rank = static_cast<std::uint32_t>(heap.top() >> 32);
    const auto at = static_cast<std::uint32_t>(heap.top());
    heap.pop();
    Part& part = parts[at];
    if (part.rank != rank) continue;
    part.token = merges_.result(rank);
    parts[part.next].rank = MergeTable::no_rank;
    part.next = parts[part.next].next;
    if (part.next != end) parts[part.next].before = at;
    update(at);
    if (at > 0) update(part.before);
  }
  for (std::uint32_t at = 0; at != end; at = parts[at].next) tokens.push_back(parts[at].token);
}

PieceEncoder::PieceEncoder(const Bpe& bpe, std::vector<Token>& tokens, std::size_t text_size)
    : bpe_(bpe), tokens_(tokens), seen_(std::bit_ceil(std::clamp<std::size_t>(text_size / 16, 1, 1 << 14))) {}

void PieceEncoder::encode(std::string_view piece) {
  const std::uint64_t hash = hash_bytes(piece);
  const Token whole = bpe_.whole(piece, hash);
  if (whole != Vocabulary::none) {
    tokens_.push_back(whole);
    return;
  }
  Seen& seen = seen_[hash & (seen_.size() - 1)];
  if (seen.piece != piece) {
    const std::size_t begin = tokens_.size();
    bpe_.encode(piece, tokens_);
    seen = {piece, begin, tokens_.size() - begin};
    return;
  }
  // Room first: inserting a vector's own elements into it must not move them while they are read.
  const std::size_t end = tokens_.size();
  tokens_.resize(end + seen.count);
  std::copy_n(tokens_.begin() + static_cast<std::ptrdiff_t>(seen.begin), seen.count,
              tokens_.begin() + static_cast<std::ptrdiff_t>(end));
}

}  // namespace calla
