#include "engine/prefix_cache.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include <fmt/format.h>

#include "engine/token_hash.h"

namespace calla {
namespace {
constexpr std::size_t remembered_evictions = 1024;

std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  const std::size_t length = std::min(a.size(), b.size());
  return static_cast<std::size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(length), b.begin()).first - a.begin());
}

bool begins_with(std::span<const Token> tokens, std::span<const Token> prefix) {
  return prefix.size() <= tokens.size() && std::equal(prefix.begin(), prefix.end(), tokens.begin());
}
}  // namespace

PrefixCache::Entry* PrefixCache::longest_entry(std::span<const Token> tokens, std::size_t most) const {
  Entry* best = nullptr;
  for (const auto& entry : entries_) {
    const std::size_t length = entry->tokens.size();
    if (length > most || (best != nullptr && length <= best->tokens.size())) continue;
    if (begins_with(tokens, entry->tokens)) best = entry.get();
  }
  return best;
}

PrefixCache::Match PrefixCache::find(std::span<const Token> prompt, int most) {
  ++requests_;
  Match match;
  if (Entry* entry = longest_entry(prompt, static_cast<std::size_t>(most))) {
    entry->used = requests_;
    ++entry->uses;
    match.snapshot = entry->snapshot;
    match.position = static_cast<int>(entry->tokens.size());
  }
  if (match.position < most) explain(prompt, static_cast<std::size_t>(most), match);
  return match;
}

void PrefixCache::explain(std::span<const Token> prompt, std::size_t most, Match& match) const {
  const auto found = static_cast<std::size_t>(match.position);
  std::size_t common = 0;
  std::size_t length = 0;  // 0: nothing begins like the prompt and goes on where nothing was found
  for (const auto& entry : entries_) {
    const std::size_t shared = common_prefix(prompt, entry->tokens);
    if (shared < entry->tokens.size() && shared >= found && shared > common) {
      common = shared;
      length = entry->tokens.size();
    }
  }
  std::size_t evicted = 0;
  if (!evicted_.empty()) {
    TokenHash hash;
    for (std::size_t i = 0; i < most; ++i) {
      hash.add(prompt[i]);
      if (i >= found && evicted_.contains(hash.value())) evicted = i + 1;
    }
  }
  if (evicted > found && evicted >= common) {
    match.miss = CacheMiss::evicted;
    match.note = fmt::format("the state after {} tokens had to make room", evicted);
  } else if (length > 0) {
    match.miss = CacheMiss::differs;
    match.note = fmt::format("first difference at token {} of a cached prompt of {}", common, length);
  } else if (found == 0) {
    match.miss = CacheMiss::empty;
    match.note = "nothing cached begins like it";
  }
}

int PrefixCache::longest(std::span<const Token> prompt, int most) const {
  const Entry* entry = longest_entry(prompt, static_cast<std::size_t>(most));
  return entry == nullptr ? 0 : static_cast<int>(entry->tokens.size());
}

std::shared_ptr<const Snapshot> PrefixCache::exactly(std::span<const Token> tokens) const {
  const Entry* entry = longest_entry(tokens, tokens.size());
  return entry != nullptr && entry->tokens.size() == tokens.size() ? entry->snapshot : nullptr;
}

void PrefixCache::insert(std::span<const Token> tokens, std::shared_ptr<const Snapshot> snapshot) {
  assert(snapshot->position() == static_cast<int>(tokens.size()));
  if (exactly(tokens) != nullptr) return;
  auto entry = std::make_unique<Entry>();
  entry->tokens.assign(tokens.begin(), tokens.end());
  entry->memory = snapshot->memory();
  entry->memory.push_back({entry.get(), sizeof(Entry) + tokens.size_bytes()});
  entry->snapshot = std::move(snapshot);
  entry->used = requests_;
  entry->parent = longest_entry(tokens, tokens.size());
  for (const auto& other : entries_) {
    if (other->parent == entry->parent && begins_with(other->tokens, tokens)) other->parent = entry.get();
  }
  for (const MemoryPiece& piece : entry->memory) {
    Held& held = held_[piece.identity];
    if (held.holders++ == 0) bytes_ += held.bytes = piece.bytes;
  }
  entries_.push_back(std::move(entry));
  while (bytes_ > limit_) {
    if (Entry* least = least_useful()) {
      evict(least);
    } else {
      remove(entries_.back().get());
    }
  }
}

bool PrefixCache::give_way() {
  Entry* least = least_useful();
  if (least == nullptr) return false;
  evict(least);
  return true;
}

std::size_t PrefixCache::freed_by(const Entry& entry) const {
  std::size_t freed = 0;
  for (const MemoryPiece& piece : entry.memory) {
    const Held& held = held_.at(piece.identity);
    if (held.holders == 1) freed += held.bytes;
  }
  return freed;
}

PrefixCache::Entry* PrefixCache::least_useful() const {
  struct Continuations {
    int count = 0;       // entries that stand on it directly
    bool fresh = false;  // one that stands on it was used since
  };
  std::unordered_map<const Entry*, Continuations> continuations;
  for (const auto& entry : entries_) {
    if (entry->parent != nullptr) ++continuations[entry->parent].count;
    for (const Entry* up = entry->parent; up != nullptr; up = up->parent) {
      if (up->used <= entry->used) continuations[up].fresh = true;
    }
  }
  Entry* least = nullptr;
  double least_value = 0;
  for (const auto& entry : entries_) {
    if (entry->snapshot.use_count() > 1) continue;
    const std::size_t kept = entry->parent == nullptr ? 0 : entry->parent->tokens.size();
    const auto age = static_cast<double>(requests_ - entry->used + 1);
    const Continuations& after = continuations[entry.get()];
    const double demand = after.count == 1 && after.fresh ? 0.25 : 1 + entry->uses;
    const double value = static_cast<double>(entry->tokens.size() - kept) * demand /
                         (static_cast<double>(freed_by(*entry)) * age);
    if (least != nullptr && value >= least_value) continue;
    least = entry.get();
    least_value = value;
  }
  return least;
}

void PrefixCache::evict(Entry* entry) {
  ++evictions_;
  TokenHash hash;
  for (const Token token : entry->tokens) hash.add(token);
  evicted_order_.push_back(hash.value());
  evicted_.insert(hash.value());
  if (evicted_order_.size() > remembered_evictions) {
    evicted_.erase(evicted_.find(evicted_order_.front()));
    evicted_order_.pop_front();
  }
  remove(entry);
}

void PrefixCache::remove(Entry* entry) {
  for (const auto& other : entries_) {
    if (other->parent == entry) other->parent = entry->parent;
  }
  for (const MemoryPiece& piece : entry->memory) {
    const auto held = held_.find(piece.identity);
    if (--held->second.holders > 0) continue;
    bytes_ -= held->second.bytes;
    held_.erase(held);
  }
  std::erase_if(entries_, [&](const auto& other) { return other.get() == entry; });
}

}  // namespace calla
