// States of the beginnings of prompts, in memory, found by their exact tokens across all conversations.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/token.h"
#include "engine/engine.h"
#include "model/backend.h"

namespace calla {

/// Of the engine's thread alone. The bytes of all snapshots in it, memory that they share counted once, never
/// exceed the limit when a call has returned.
///
/// When room is needed, the least useful one goes. Its use is the tokens that would have to be read again
/// without it, down to the longest prefix that remains, for each byte that it alone holds; the more often it
/// served and the fewer requests ago, the more. One that a single longer one stands on, used since, is a turn
/// that the conversation has left behind: that it served says nothing then, and a quarter of its use is left.
class PrefixCache {
 public:
  explicit PrefixCache(std::uint64_t limit) : limit_(limit) {}

  struct Match {
    std::shared_ptr<const Snapshot> snapshot = nullptr;
    int position = 0;                   // 0: nothing was found
    CacheMiss miss = CacheMiss::empty;  // where nothing was found
    std::string note = {};              // why not more; empty where there could not have been more
  };
  /// The longest prefix of the prompt, of at most `most` tokens. Counts as a use of it.
  Match find(std::span<const Token> prompt, int most);
  /// The same without counting as a use, and without an explanation.
  int longest(std::span<const Token> prompt, int most) const;
  /// The snapshot of exactly these tokens, or null.
  std::shared_ptr<const Snapshot> exactly(std::span<const Token> tokens) const;

  /// Keeps a snapshot of these tokens, if it is more useful than what it would drive out. Those that someone
  /// else holds too, to write them to disk say, stay: the memory would not come back.
  void insert(std::span<const Token> tokens, std::shared_ptr<const Snapshot> snapshot);

  /// Drops the least useful one, for the backend has no memory left; false where none can go.
  bool give_way();

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t limit() const { return limit_; }
  std::uint64_t entries() const { return entries_.size(); }
  std::uint64_t evictions() const { return evictions_; }

 private:
  struct Entry {
    std::vector<Token> tokens;
    std::shared_ptr<const Snapshot> snapshot;
    std::vector<MemoryPiece> memory;
    Entry* parent = nullptr;  // the longest entry that is a prefix of this one
    std::uint64_t used = 0;   // by which request, counted
    int uses = 0;
  };
  struct Held {
    std::size_t bytes = 0;
    int holders = 0;
  };

  Entry* longest_entry(std::span<const Token> tokens, std::size_t most) const;
  void explain(std::span<const Token> prompt, std::size_t most, Match& match) const;
  Entry* least_useful() const;
  void evict(Entry* entry);
  std::size_t freed_by(const Entry& entry) const;  // bytes
  void remove(Entry* entry);

  std::uint64_t limit_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::unordered_map<const void*, Held> held_;  // memory by identity
  std::uint64_t bytes_ = 0;
  std::uint64_t requests_ = 0;
  std::uint64_t evictions_ = 0;
  // Hashes of what was evicted, oldest first: only to say so.
  std::deque<std::uint64_t> evicted_order_;
  std::unordered_multiset<std::uint64_t> evicted_;
};

}  // namespace calla
